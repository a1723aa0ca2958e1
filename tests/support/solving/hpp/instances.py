"""Problems of kind hpp for the tests: one drawn by hand in round numbers, and random small ones."""

import dataclasses
from random import Random
from typing import Any

from fleetune.solving.hpp.problem import Device, Layer, Problem


def drawn(**changes: Any) -> Problem:
    """Three layers on two nano and a tx2 of twice their speed; 5 micro-batches of 2 samples.

    One sample takes every layer 0.5 s forward and 1 s backward on a nano; a cut's 100 bytes a sample cross a link in
    0.5 s and arrive 0.1 s later.
    """
    layers = [
        Layer(name=name, param_bytes=1000, activation_bytes=200, flops=1000, output_bytes=100)
        for name in ("embed", "body", "head")
    ]
    problem = Problem(
        micro_batch=2,
        micro_batches=5,
        layers=tuple(layers),
        devices=(
            Device(name="nano-0", memory_bytes=20_000),
            Device(name="nano-1", memory_bytes=20_000),
            Device(name="tx2", memory_bytes=40_000),
        ),
        batch_sizes=(1, 2),
        forward_s=(((0.5, 1.0),) * 3, ((0.5, 1.0),) * 3, ((0.25, 0.5),) * 3),
        backward_s=(((1.0, 2.0),) * 3, ((1.0, 2.0),) * 3, ((0.5, 1.0),) * 3),
        bandwidth_bytes_per_s=((None, 200.0, 200.0), (200.0, None, 200.0), (200.0, 200.0, None)),
        latency_s=((None, 0.1, 0.1), (0.1, None, 0.1), (0.1, 0.1, None)),
    )
    return dataclasses.replace(problem, **changes)


def tiny(
    seed: int,
    layers: int = 5,
    devices: int = 3,
    samples: int = 4,
    memory: float = 1.0,
    link: float = 1.0,
    **changes: Any,
) -> Problem:
    """A random problem of devices 1-6x apart in speed and 1-2x in memory, with some frozen layers and uneven links.

    `memory`: with budgets at 1.0 every plan fits, at 0.6 most, at 0.4 less than half, at 0.3 perhaps none. `link`: at
    0.1 a cut costs as much as ten layers on the fastest device, at 1 one layer, at 10 next to nothing. Times are
    concave in the samples, measured at the powers of two. `changes` replaces fields of the problem; `micro_batches`
    is 4 unless it is there.
    """
    random = Random(f"{seed} {layers} {devices} {samples}")
    micro_batches = changes.setdefault("micro_batches", 4)
    sizes = tuple(2**i for i in range(samples.bit_length()) if 2**i <= samples)
    made = tuple(_layer(random, f"layer-{i}") for i in range(layers))
    work = [random.uniform(0.5, 2.0) * 1e-3 for _ in range(layers)]  # s per sample on the fastest device
    slowness = [random.uniform(1.0, 6.0) for _ in range(devices)]
    shape = [random.uniform(0.7, 1.0) for _ in range(devices)]  # how much a larger batch helps a device

    def times(device: int, share: float) -> tuple[tuple[float, ...], ...]:
        own = slowness[device] * share
        return tuple(
            tuple(own * seconds * random.uniform(0.9, 1.1) * (0.3 + y ** shape[device]) for y in sizes)
            for seconds in work
        )

    one_layer_s = sum(work) / layers * samples
    cut_bytes = sum(layer.output_bytes for layer in made) / layers * samples
    ample = sum(
        layer.param_bytes * 2 + layer.activation_bytes * samples * max(micro_batches, 2 * devices) / 2 for layer in made
    )
    problem = Problem(
        micro_batch=samples,
        micro_batches=micro_batches,
        layers=made,
        devices=tuple(
            Device(name=f"device-{d}", memory_bytes=int(memory * ample * random.uniform(0.9, 1.8)))
            for d in range(devices)
        ),
        batch_sizes=sizes,
        forward_s=tuple(times(d, 1.0) for d in range(devices)),
        backward_s=tuple(times(d, random.uniform(1.5, 2.5)) for d in range(devices)),
        bandwidth_bytes_per_s=_pairs(devices, lambda: cut_bytes / one_layer_s * link * random.uniform(0.5, 1.5)),
        latency_s=_pairs(devices, lambda: random.uniform(0.0, 0.1) * one_layer_s / link),
    )
    return dataclasses.replace(problem, **changes)


def _layer(random: Random, name: str) -> Layer:
    params = random.randrange(100, 2000) * 4
    output = random.randrange(100, 2000)
    return Layer(
        name=name,
        param_bytes=params,
        activation_bytes=random.randrange(200, 4000),
        flops=random.randrange(1000, 100_000),
        output_bytes=output,
        gradient_bytes=random.choice([None, output // 2]),
        trainable_bytes=random.choice([None, None, 0, params // 4]),
    )


def _pairs(devices: int, value: Any) -> tuple[tuple[float | None, ...], ...]:
    return tuple(tuple(None if a == b else value() for b in range(devices)) for a in range(devices))
