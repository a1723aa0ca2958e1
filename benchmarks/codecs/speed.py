"""Bytes and seconds of every codec, side by side with a copy of the same tensor."""

import time
from collections.abc import Iterator
from typing import Any

import torch

from benchmarks.codecs.codec_seconds import CodecSeconds, codec_seconds
from benchmarks.report import Figure, median_and_spread
from fleetune.codecs import encode
from fleetune.contracts.link_codecs import (
    BF16,
    CODECS,
    DENSE,
    FORWARD_MASK,
    FP16,
    INT4,
    INT4_HADAMARD,
    INT8,
    INT8_HADAMARD,
    SPARSE,
    TOP_K,
    wire_bytes,
)

CODED = tuple(codec for codec in CODECS if codec != DENSE)
FAST = (FP16, BF16, INT8, INT4, INT8_HADAMARD, INT4_HADAMARD)
"""Codecs with a target: a gigabyte per second, encoded and decoded."""
RATIO = 100.0
SHAPE = (16, 128, 384)
"""Samples, tokens, features: 3 MiB."""
SLOW_BYTES_PER_S = 1e6
"""8 Mbit/s."""
SHEET = (
    f"one core, CPU time; seconds per GB of float32; top-k keeps one of {RATIO:.0f}; % of saved s: coding beside the "
    "time it saves at 8 Mbit/s"
)


def speeds(rounds: int) -> Iterator[Figure]:
    """Yield bytes, seconds per GB, throughput and the share of the link's time that coding costs."""
    tensor = torch.randn(SHAPE, generator=torch.Generator().manual_seed(0))
    dense = tensor.numel() * tensor.element_size()
    taken: dict[str, list[CodecSeconds]] = {codec: [] for codec in CODED}
    copies: list[float] = []
    for _ in range(rounds + 1):  # the first warms up
        copies.append(_copy_s(tensor) / dense * 1e9)
        for codec in CODED:
            taken[codec].append(codec_seconds(codec, tensor, _ratio(codec)))
    yield Figure(
        name="copy",
        unit="s/GB",
        better="lower",
        about="Tensor.clone of the same tensor, in turns with the codecs",
        **median_and_spread(copies[1:]),
    )
    for codec in CODED:
        yield from _figures(codec, tensor, taken[codec][1:], dense)


def _figures(codec: str, tensor: torch.Tensor, taken: list[CodecSeconds], dense: int) -> Iterator[Figure]:
    kept = encode(TOP_K, tensor, RATIO).kept if codec == FORWARD_MASK else None
    sent = encode(codec, tensor, _ratio(codec), kept).size_bytes
    stated = wire_bytes(dense // SHAPE[0], SHAPE[0], codec, _ratio(codec))

    def cell(name: str, column: str, unit: str, values: list[float], **more: Any) -> Figure:
        described: dict[str, Any] = {"better": "lower", **median_and_spread(values), **more}
        return Figure(name=f"{codec}_{name}", unit=unit, cell=(SHEET, codec, column), **described)

    per_gb = 1e9 / dense
    both = [seconds.encode_s + seconds.decode_s for seconds in taken]
    yield cell("bytes", "bytes / dense", "x", [sent / dense])
    yield cell("unstated_bytes", "unstated B", "B", [float(abs(sent - stated))], target=0.0)
    yield cell("encode", "encode", "s/GB", [seconds.encode_s * per_gb for seconds in taken])
    yield cell("decode", "decode", "s/GB", [seconds.decode_s * per_gb for seconds in taken])
    target = {"target": 1.0} if codec in FAST else {}
    yield cell("throughput", "GB/s, both", "GB/s", [dense / 1e9 / s for s in both], better="higher", **target)
    saved_s = (dense - sent) / SLOW_BYTES_PER_S
    yield cell("cost_at_8_mbit", "% of saved s", "%", [100 * s / saved_s for s in both], target=5.0)


def _ratio(codec: str) -> float:
    return RATIO if codec in SPARSE else 1.0


def _copy_s(tensor: torch.Tensor) -> float:
    started_s = time.thread_time()
    tensor.clone()
    return time.thread_time() - started_s
