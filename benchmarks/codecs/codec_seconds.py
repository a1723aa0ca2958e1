"""Seconds that a codec takes on this device."""

import time
from collections.abc import Callable
from typing import NamedTuple

import torch

from fleetune.codecs.codec import decode, encode
from fleetune.contracts.link_codecs import FORWARD_MASK, TOP_K


class CodecSeconds(NamedTuple):
    """CPU seconds of one thread for one tensor."""

    encode_s: float
    decode_s: float


def codec_seconds(codec: str, tensor: torch.Tensor, ratio: float = 1.0) -> CodecSeconds:
    """Encode and decode a tensor once. CPU time, so that other processes of the machine count little."""
    kept = encode(TOP_K, tensor, ratio).kept if codec == FORWARD_MASK else None
    sent = encode(codec, tensor, ratio, kept)
    return CodecSeconds(
        encode_s=_cpu_seconds(lambda: encode(codec, tensor, ratio, kept)),
        decode_s=_cpu_seconds(lambda: decode(sent.description, sent.parts, tensor.device, kept)),
    )


def _cpu_seconds(action: Callable[[], object]) -> float:
    started_s = time.thread_time()
    action()
    return time.thread_time() - started_s
