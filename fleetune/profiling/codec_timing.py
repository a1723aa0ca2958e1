"""Times link codecs on this device.

They are timed at encoding and decoding tensors of two sizes: the line through both gives seconds for each tensor and
seconds per byte.
"""

import statistics
from collections.abc import Callable
from typing import NamedTuple

import torch

from fleetune.codecs import Encoded, ErrorFeedback, decode, encode
from fleetune.contracts.link_codecs import CODECS, DENSE, ELEMENT_BYTES, FORWARD_MASK, SPARSE, TOP_K
from fleetune.contracts.profile import CodecTime
from fleetune.profiling.timing import TimingSettings, elapsed_s, read_clock

SMALL_BYTES, LARGE_BYTES, SAMPLES = 1 << 16, 1 << 20, 8
"""Sizes of the dense tensors, and the samples in each."""
SPARSE_RATIOS = (4.0, 100.0)
"""Ratios at which codecs that leave elements out are timed: their time is linear in the share of kept elements."""


def codec_times(device: torch.device, settings: TimingSettings, dtype: torch.dtype) -> tuple[CodecTime, ...]:
    """Return the times of all codecs but `dense`, each the median over the passes after one that is not counted."""
    generator = torch.Generator().manual_seed(0)
    shapes = ((SAMPLES, size // SAMPLES // dtype.itemsize) for size in (SMALL_BYTES, LARGE_BYTES))
    small, large = (torch.randn(shape, generator=generator).to(device, dtype) for shape in shapes)
    asked = [
        (codec, ratio) for codec in CODECS if codec != DENSE for ratio in (SPARSE_RATIOS if codec in SPARSE else (1.0,))
    ]
    return tuple(_codec_time(codec, ratio, (small, large), settings) for codec, ratio in asked)


def feedback_s_per_byte(device: torch.device, settings: TimingSettings, dtype: torch.dtype) -> float:
    """Return the seconds per byte of a message of adding what the last one lost and keeping what this one loses,
    beside encoding and decoding it."""
    message = torch.randn(SAMPLES, LARGE_BYTES // SAMPLES // dtype.itemsize).to(device, dtype)
    narrow = dtype.itemsize < ELEMENT_BYTES
    feedback = ErrorFeedback()
    feedback.load({"": torch.zeros_like(message, dtype=torch.float32 if narrow else dtype)})

    def added_and_kept() -> None:
        whole = feedback.add("", message.float() if narrow else message)
        decoded = whole.to(dtype) if narrow else message
        feedback.keep("", whole - (decoded.float() if narrow else decoded))

    return _median_s(added_and_kept, settings) / LARGE_BYTES


class _Line(NamedTuple):
    """Seconds of a tensor of any size."""

    per_tensor_s: float
    s_per_byte: float


def line_through(small_s: float, large_s: float) -> _Line:
    """Return the line through the times of SMALL_BYTES and LARGE_BYTES; neither part of it is negative.

    Where noise makes one negative, the larger tensor's time counts, in proportion to its bytes.
    """
    s_per_byte = max(0.0, large_s - small_s) / (LARGE_BYTES - SMALL_BYTES)
    per_tensor_s = small_s - s_per_byte * SMALL_BYTES
    if per_tensor_s <= 0 or s_per_byte == 0:
        return _Line(0.0, large_s / LARGE_BYTES)
    return _Line(per_tensor_s, s_per_byte)


def _codec_time(
    codec: str, ratio: float, tensors: tuple[torch.Tensor, torch.Tensor], settings: TimingSettings
) -> CodecTime:
    both = [_both_ways_s(codec, ratio, tensor, settings) for tensor in tensors]
    encoding, decoding = (line_through(small_s, large_s) for small_s, large_s in zip(*both, strict=True))
    return CodecTime(
        codec=codec,
        ratio=ratio,
        encode_s_per_byte=encoding.s_per_byte,
        decode_s_per_byte=decoding.s_per_byte,
        encode_s=encoding.per_tensor_s,
        decode_s=decoding.per_tensor_s,
    )


def _both_ways_s(codec: str, ratio: float, tensor: torch.Tensor, settings: TimingSettings) -> tuple[float, float]:
    """Return the seconds of encoding and of decoding a tensor."""
    kept = encode(TOP_K, tensor, ratio).kept if codec == FORWARD_MASK else None
    sent = encode(codec, tensor, ratio, kept)

    def encoded() -> Encoded:
        return encode(codec, tensor, ratio, kept)

    def decoded() -> torch.Tensor:
        return decode(sent.description, sent.parts, tensor.device, kept)

    return _median_s(encoded, settings), _median_s(decoded, settings)


def _median_s(action: Callable[[], object], settings: TimingSettings) -> float:
    taken = []
    for _ in range(settings.passes + 1):
        start = read_clock(settings)
        action()
        taken.append(elapsed_s(start, settings))
    return statistics.median(taken[1:])
