"""Times link codecs on this device: seconds per byte of encoding and decoding a message of MESSAGE_BYTES."""

import statistics
from collections.abc import Callable

import torch

from fleetune.codecs import Encoded, decode, encode
from fleetune.contracts.link_codecs import CODECS, DENSE, FORWARD_MASK, SPARSE, TOP_K
from fleetune.contracts.profile import CodecTime
from fleetune.profiling.unit_timing import TimingSettings, elapsed_s, read_clock

MESSAGE_BYTES, SAMPLES = 1 << 20, 8
"""Size of the dense tensor, and the samples in it."""
SPARSE_RATIOS = (4.0, 100.0)
"""Ratios at which codecs that leave elements out are timed: their time is linear in the share of kept elements."""


def codec_times(device: torch.device, settings: TimingSettings, dtype: torch.dtype) -> tuple[CodecTime, ...]:
    """Return the times of all codecs but `dense`, each the median over the passes after one that is not counted."""
    elements = MESSAGE_BYTES // SAMPLES // dtype.itemsize
    generator = torch.Generator().manual_seed(0)
    tensor = torch.randn((SAMPLES, elements), generator=generator).to(device, dtype)
    asked = [
        (codec, ratio) for codec in CODECS if codec != DENSE for ratio in (SPARSE_RATIOS if codec in SPARSE else (1.0,))
    ]
    return tuple(_codec_time(codec, ratio, tensor, settings) for codec, ratio in asked)


def _codec_time(codec: str, ratio: float, tensor: torch.Tensor, settings: TimingSettings) -> CodecTime:
    kept = encode(TOP_K, tensor, ratio).kept if codec == FORWARD_MASK else None
    sent = encode(codec, tensor, ratio, kept)

    def encoded() -> Encoded:
        return encode(codec, tensor, ratio, kept)

    def decoded() -> torch.Tensor:
        return decode(sent.description, sent.parts, tensor.device, kept)

    return CodecTime(
        codec=codec,
        ratio=ratio,
        encode_s_per_byte=_median_s(encoded, settings) / MESSAGE_BYTES,
        decode_s_per_byte=_median_s(decoded, settings) / MESSAGE_BYTES,
    )


def _median_s(action: Callable[[], object], settings: TimingSettings) -> float:
    taken = []
    for _ in range(settings.passes + 1):
        start = read_clock(settings)
        action()
        taken.append(elapsed_s(start, settings))
    return statistics.median(taken[1:])
