"""Problems for tests of planning: small ones by hand, tiny ones by hypothesis."""

import random
from dataclasses import replace
from typing import Any

from hypothesis import strategies as st

from fleetune.contracts.fleet import Fleet, Link
from fleetune.contracts.profile import DeviceTimes, Profile, Unit
from fleetune.contracts.subnet import Subnet, SubnetPart
from fleetune.planning import Problem
from tests.support.clock import fleets


def small(micro_batch_samples: int = 4, micro_batches: int = 3, **options: Any) -> Problem:
    """Four units on devices a (fast), b (half as fast) and c (a quarter as fast)."""
    return Problem(
        fleet=fleets.FLEET,
        profile=fleets.PROFILE,
        micro_batch_samples=micro_batch_samples,
        micro_batches=micro_batches,
        options=options,
    )


@st.composite
def tiny(draw: st.DrawFn, devices: int = 3, monotone: bool = True, workspaces: bool = False) -> Problem:
    """Problems with up to 5 uneven units, some not separable, on up to `devices` uneven devices and links.

    workspaces: whether units need memory while they run.
    """
    count = draw(st.integers(1, 5))
    names = ["a", "b", "c", "d"][: draw(st.integers(1, devices))]
    batch = draw(st.integers(1, 4))
    units = tuple(_unit(draw, f"u{k}") for k in range(count))
    space = st.integers(0, 60 if workspaces else 0)
    units = tuple(replace(u, workspace_bytes=draw(space), workspace_sample_bytes=draw(space)) for u in units)
    times = tuple(
        DeviceTimes(
            device=name,
            runtime_bytes=draw(st.integers(0, 50)),
            forward_s=tuple(_times(draw, monotone) for _ in units),
            backward_s=tuple(_times(draw, monotone) for _ in units),
        )
        for name in names
    )
    budget = st.one_of(st.just(10**6), st.integers(100, 3000))
    rate, latency = st.sampled_from([1e3, 1e5, 1e7]), st.sampled_from([0.0, 0.001])
    links = [
        Link(source=a, target=b, latency_s=draw(latency), bytes_per_s=draw(rate))
        for a in names
        for b in names
        if a != b
    ]
    return Problem(
        fleet=Fleet(devices=tuple(fleets.device(n, draw(budget)) for n in names), links=tuple(links)),
        profile=Profile(model="tiny", units=units, batch_sizes=(1, 2, 3, 4), times=times),
        micro_batch_samples=batch,
        micro_batches=draw(st.integers(1, 3)),
    )


def needing(problem: Problem, *samples: int) -> Problem:
    """The problem whose units need so many samples, in turn."""
    units = problem.profile.units
    needed = [samples[k % len(samples)] for k in range(len(units))]
    found = tuple(replace(unit, min_samples=least) for unit, least in zip(units, needed, strict=True))
    return replace(problem, profile=replace(problem.profile, units=found))


@st.composite
def needy(draw: st.DrawFn, monotone: bool = True, devices: int = 3) -> Problem:
    """Tiny problems, some of whose units need several samples, at most those of a micro-batch."""
    problem = draw(tiny(devices=devices, monotone=monotone))
    least = st.integers(1, problem.micro_batch_samples)
    return needing(problem, *(draw(least) for _ in problem.profile.units))


def _unit(draw: st.DrawFn, name: str) -> Unit:
    params = draw(st.integers(0, 300))
    return Unit(
        name=name,
        param_bytes=params,
        trainable_bytes=draw(st.sampled_from([0, params])),
        activation_bytes=draw(st.integers(0, 40)),
        output_bytes=draw(st.integers(0, 30)),
        gradient_bytes=draw(st.integers(0, 30)),
        flops=1,
        cut_after=draw(st.integers(0, 4)) > 0,
    )


def _times(draw: st.DrawFn, monotone: bool) -> tuple[float, ...]:
    values = draw(st.lists(st.integers(1, 40), min_size=4, max_size=4))
    return tuple(v / 1000 for v in (sorted(values) if monotone else values))


def scored(problem: Problem, heads: int = 2) -> Problem:
    """Every unit as a block of `heads` equal heads, which together are four fifths of it; scores differ by head and,
    for Fisher, by micro-batch."""
    subnets = tuple(
        Subnet(
            name=f"{unit.name}#{head}",
            parts=(SubnetPart(unit=unit.name, share=0.8 / heads),),
            weight_magnitude=1.0 + head,
            gradient_magnitude=2.0 - head / heads,
            fisher=tuple(float((5 * m + 3 * head + index) % 7) for m in range(problem.micro_batches)),
        )
        for index, unit in enumerate(problem.profile.units)
        for head in range(heads)
    )
    return replace(problem, profile=replace(problem.profile, subnets=subnets))


def narrowing() -> Problem:
    """Eight micro-batches of 8 samples of four blocks of two units and a head, on two fast devices, two half as fast
    with half of the memory, and a slow one; a byte takes a microsecond on every link."""
    units = [
        replace(
            fleets.unit(name, param_bytes=500 * 4**block, activation_bytes=4000 // 2**block),
            output_bytes=2000 // 2**block,
            gradient_bytes=2000 // 2**block,
        )
        for block in range(4)
        for name in (f"block.{block}.conv", f"block.{block}.norm")
    ]
    units.append(fleets.unit("head", param_bytes=20_000))
    pace = {"fast-0": 0.001, "fast-1": 0.001, "half-0": 0.002, "half-1": 0.002, "slow": 0.02}
    memory = {"fast-0": 400_000, "fast-1": 400_000, "half-0": 200_000, "half-1": 200_000, "slow": 400_000}
    return Problem(
        fleet=fleets.fleet(*(fleets.device(name, size) for name, size in memory.items())),
        profile=fleets.profile(units, pace),
        micro_batch_samples=8,
        micro_batches=8,
    )


def names_of(problem: Problem) -> list[str]:
    """Names of all devices of the fleet."""
    return [device.name for device in problem.fleet.devices]


def jagged(problem: Problem, chance: random.Random) -> Problem:
    """The same with times of odd fractions of nanoseconds, and links that cost processor time."""
    half_ns = 0.5e-9

    def rows(table: tuple[tuple[float, ...], ...]) -> tuple[tuple[float, ...], ...]:
        return tuple(tuple(t * chance.random() + half_ns * chance.randrange(9) for t in row) for row in table)

    times = tuple(replace(t, forward_s=rows(t.forward_s), backward_s=rows(t.backward_s)) for t in problem.profile.times)
    devices = tuple(
        replace(d, cores=chance.choice([0.3, 1.0, 1.5, 4.0]), link_cpu_s_per_byte=chance.choice([0.0, 1e-9, 1.7e-5]))
        for d in problem.fleet.devices
    )
    return replace(
        problem, fleet=replace(problem.fleet, devices=devices), profile=replace(problem.profile, times=times)
    )


def lora(trained: int = 100, **options: object) -> Problem:
    """Two blocks of two units and a head, of which little is trained, on b, c and d; server a is idle."""
    names = ["layer.0.query", "layer.0.output", "layer.1.query", "layer.1.output", "head"]
    units = [replace(fleets.unit(name, param_bytes=10_000), trainable_bytes=trained) for name in names]
    paces = {"a": 0.001, "b": 0.002, "c": 0.004, "d": 0.003}
    return replace(
        small(micro_batch_samples=4, micro_batches=2, **options),
        fleet=fleets.fleet(*(fleets.device(name) for name in paces), bytes_per_s=1e4),
        profile=fleets.profile(units, paces),
    )


def five(micro_batches: int = 1, **options: object) -> Problem:
    """Helpers h and i, clients x, y and z of different speed, six units; u2 may not be cut from u3."""
    units = [fleets.unit(f"u{k}", cut_after=k != 2) for k in range(6)]
    paces = {"h": 0.001, "i": 0.0015, "x": 0.004, "y": 0.006, "z": 0.009}
    named = {"helpers": ["h", "i"], "cuts": ["u0", "u4"]}
    return replace(
        small(micro_batch_samples=4, micro_batches=micro_batches, **{**named, **options}),
        fleet=fleets.fleet(*(fleets.device(name) for name in paces), bytes_per_s=1e5),
        profile=fleets.profile(units, paces),
    )
