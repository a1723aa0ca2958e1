"""Problems for tests of planning: small ones by hand, tiny ones by hypothesis."""

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
