"""Random problems of kind "hpp"."""

from random import Random
from typing import NamedTuple

from fleetune.solving.hpp.problem import Device, Layer, Problem


class Shape(NamedTuple):
    """Size and difficulty of a random problem."""

    layers: int
    devices: int
    samples: int
    micro_batches: int
    link: float = 0.3
    """Link speed. At 1 an average cut of a micro-batch crosses an average link in the time of an average layer on the
    fastest device; smaller is slower."""
    memory: float = 1.0
    """Memory. At 1 the average device can hold most plans; at 0.4 few plans fit."""
    warmup: str = "2(P-p)-1"


def random_problem(seed: int, shape: Shape) -> Problem:
    """A problem with devices up to six times as fast as others, times sublinear in samples, and asymmetric links.

    By seed, layers are like a convolutional network's (activations shrink and weights grow with depth) or a
    transformer's (all alike).
    """
    random = Random(f"{seed} {shape}")
    deepens = random.random() < 0.5
    layers = tuple(_layer(random, i, i / shape.layers if deepens else 0.5) for i in range(shape.layers))
    work_s = [random.uniform(0.5, 2.0) * 1e-3 for _ in layers]
    sizes = tuple(2**k for k in range(shape.samples.bit_length()))
    tables = [
        [_times(random, work_s, sizes, slower) for slower in (1.0, random.uniform(1.5, 2.5))]
        for _ in "d" * shape.devices
    ]
    mean_s, cut_bytes = sum(work_s) / shape.layers * shape.samples, sum(x.output_bytes for x in layers) / shape.layers
    speed = cut_bytes * shape.samples / mean_s * shape.link
    need = sum(x.param_bytes * 2 + x.activation_bytes * shape.samples * shape.devices for x in layers)
    return Problem(
        micro_batch=shape.samples,
        micro_batches=shape.micro_batches,
        layers=layers,
        devices=tuple(
            Device(name=f"d{d}", memory_bytes=int(shape.memory * need * random.uniform(0.6, 1.6)))
            for d in range(shape.devices)
        ),
        batch_sizes=sizes,
        forward_s=tuple(there for there, _ in tables),
        backward_s=tuple(back for _, back in tables),
        bandwidth_bytes_per_s=_links(random, shape.devices, 0.4 * speed, 1.6 * speed),
        latency_s=_links(random, shape.devices, 0.0, 0.1 * mean_s),
        warmup=shape.warmup,
    )


def _layer(random: Random, index: int, depth: float) -> Layer:
    output = int(4e5 * 8 ** (0.5 - depth) * random.uniform(0.3, 1.7))
    return Layer(
        name=f"layer-{index}",
        param_bytes=int(4e5 * 8 ** (depth - 0.5) * random.uniform(0.3, 1.7)),
        activation_bytes=2 * output,
        flops=int(1e6 * random.uniform(0.5, 2)),
        output_bytes=output,
    )


def _times(random: Random, work_s: list[float], sizes: tuple[int, ...], slower: float) -> tuple[tuple[float, ...], ...]:
    own, shape = random.uniform(1.0, 6.0) * slower, random.uniform(0.75, 1.0)
    return tuple(tuple(own * s * random.uniform(0.9, 1.1) * (0.3 + y**shape) for y in sizes) for s in work_s)


def _links(random: Random, devices: int, low: float, high: float) -> tuple[tuple[float | None, ...], ...]:
    return tuple(tuple(None if a == b else random.uniform(low, high) for b in range(devices)) for a in range(devices))
