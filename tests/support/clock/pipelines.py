"""Small pipelines in ticks of 1 ns, by hand and from hypothesis, as the compiled simulation's input and as plans."""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np
from hypothesis import strategies as st

from fleetune.clock.pipeline_arrays import FIRST, PipelineArrays, new_arrays
from fleetune.contracts.fleet import Fleet, Link
from fleetune.contracts.metrics import TimelineRow
from fleetune.contracts.plan import REDUCE, Plan, Segment, Share, parse_action
from fleetune.contracts.profile import DeviceTimes, Profile
from tests.support.clock import fleets, ticks

TICK_BYTES_PER_S = 1e9
"""One byte per tick."""


class Member(NamedTuple):
    """A device of a stage: its number, its samples of every micro-batch, and its ticks."""

    device: int
    samples: int
    forward_ns: int
    backward_ns: int
    order: tuple[tuple[str, int], ...] = ()
    """Empty: one-forward-one-backward."""


class PipelineStage(NamedTuple):
    """Devices that run the same layers, and the bytes that they sum, send on, and send back across the same cut."""

    members: tuple[Member, ...]
    warmup: int
    trainable_bytes: int
    output_bytes: int = 0
    gradient_bytes: int = 0


class Pipeline(NamedTuple):
    """Stages, micro-batches, and links as [from][to]."""

    stages: tuple[PipelineStage, ...]
    micro_batches: int
    bandwidth_bytes_per_s: tuple[tuple[float, ...], ...]
    latency_s: tuple[tuple[float, ...], ...]


def layout_of(pipeline: Pipeline) -> PipelineArrays:
    """The pipeline as input of the compiled simulation."""
    members = [member for stage in pipeline.stages for member in stage.members]
    link = np.stack([np.array(pipeline.bandwidth_bytes_per_s), np.array(pipeline.latency_s)], axis=-1)
    layout = new_arrays(len(members), len(pipeline.stages), link)
    layout.size[:] = len(pipeline.stages), pipeline.micro_batches
    layout.stage[1:, FIRST] = np.cumsum([len(stage.members) for stage in pipeline.stages])
    for p, (_, *numbers) in enumerate(pipeline.stages):
        layout.stage[p, FIRST + 1 :] = numbers
    layout.member[:] = [member[:4] for member in members]
    return layout


def planned(pipeline: Pipeline) -> tuple[Plan, Fleet, Profile]:
    """The pipeline as a plan of one unit a stage, on devices named by stage and place."""
    names = [f"{p}.{place}" for p, stage in enumerate(pipeline.stages) for place in range(len(stage.members))]
    batch = sum(member.samples for member in pipeline.stages[0].members)
    segments, times, places = [], [], iter(names)
    for p, stage in enumerate(pipeline.stages):
        shares = []
        for member in stage.members:
            name = next(places)
            shares.append(Share(device=name, samples=member.samples))
            forward_s, backward_s = (
                tuple((value * ticks.TICK_S * (k == p),) * batch for k in range(len(pipeline.stages)))
                for value in (member.forward_ns, member.backward_ns)
            )
            times.append(DeviceTimes(device=name, runtime_bytes=0, forward_s=forward_s, backward_s=backward_s))
        segments.append(Segment(units=(f"u{p}",), shares=tuple(shares), warmup=stage.warmup))
    units = tuple(
        ticks.unit(f"u{p}", trained=stage.trainable_bytes, out=stage.output_bytes, back=stage.gradient_bytes)
        for p, stage in enumerate(pipeline.stages)
    )
    links = tuple(
        Link(source=a, target=b, latency_s=pipeline.latency_s[i][j], bytes_per_s=pipeline.bandwidth_bytes_per_s[i][j])
        for i, a in enumerate(names)
        for j, b in enumerate(names)
        if a != b
    )
    return (
        ticks.plan({"main": segments}, micro_batches=pipeline.micro_batches),
        Fleet(devices=tuple(map(fleets.device, names)), links=links),
        Profile(model="ticks", units=units, batch_sizes=tuple(range(1, batch + 1)), times=tuple(times)),
    )


def seat_of(name: str) -> tuple[int, int]:
    """Stage and place of a device of `planned`."""
    stage, place = name.split(".")
    return int(stage), int(place)


def spans(rows: Iterable[TimelineRow], seats: Mapping[str, tuple[int, int]] | None = None) -> set[tuple[Any, ...]]:
    """Passes and transfers of a timeline as the reference logs them. seats: of devices that `planned` has not named."""
    found = set()
    for row in rows:
        action, ends = parse_action(row.action), (ticks.ticks(row.start_s), ticks.ticks(row.end_s))
        held = [seats[name] if seats else seat_of(name) for name in row.device.split(">")]
        if row.is_transfer:
            found.add(("transfer", *held, action.letter, action.micro_batch, row.bytes, *ends))
        elif action.letter != REDUCE:
            found.add(("task", *held[0], action.letter, action.micro_batch, *ends))
    return found


def uniform(
    stages: list[list[tuple[int, int, int]]],
    *,
    warmups: list[int],
    cut_bytes: list[tuple[int, int]],
    micro_batches: int,
    latency: int = 0,
    trainable_bytes: int = 0,
) -> Pipeline:
    """Stages as lists of (samples, forward, backward) in ticks; every link carries a byte per tick."""
    device = iter(range(100))
    count = sum(len(members) for members in stages)
    made = tuple(
        PipelineStage(
            members=tuple(
                Member(device=next(device), samples=samples, forward_ns=forward, backward_ns=backward)
                for samples, forward, backward in members
            ),
            warmup=warmup,
            trainable_bytes=trainable_bytes,
            output_bytes=out,
            gradient_bytes=back,
        )
        for members, warmup, (out, back) in zip(stages, warmups, [*cut_bytes, (0, 0)], strict=True)
    )
    return Pipeline(
        stages=made,
        micro_batches=micro_batches,
        bandwidth_bytes_per_s=((TICK_BYTES_PER_S,) * count,) * count,
        latency_s=((latency * 1e-9,) * count,) * count,
    )


@st.composite
def pipelines(draw: st.DrawFn) -> Pipeline:
    """Pipelines of up to 3 stages on up to 3 devices each, with uneven samples and links, ties and zeros."""
    batch = draw(st.integers(1, 4))
    count = draw(st.integers(1, 3))
    micro_batches = draw(st.integers(1, 4))
    warmups = sorted(draw(st.lists(st.integers(1, 6), min_size=count, max_size=count)), reverse=True)
    tick = st.integers(0, 4)
    stages, device = [], 0
    for p in range(count):
        members = []
        for samples in _deal(draw, batch):
            members.append(Member(device=device, samples=samples, forward_ns=draw(tick), backward_ns=draw(tick)))
            device += 1
        last = p == count - 1
        out, back = (0, 0) if last else (draw(st.integers(0, 3)), draw(st.integers(0, 3)))
        stages.append(
            PipelineStage(
                members=tuple(members),
                warmup=warmups[p],
                trainable_bytes=draw(st.integers(0, 9)),
                output_bytes=out,
                gradient_bytes=back,
            )
        )
    speed = st.sampled_from([0.5e9, 1e9, 2e9])
    latency = st.sampled_from([0.0, 1e-9, 3e-9])
    return Pipeline(
        stages=tuple(stages),
        micro_batches=micro_batches,
        bandwidth_bytes_per_s=tuple(tuple(draw(speed) for _ in range(device)) for _ in range(device)),
        latency_s=tuple(tuple(draw(latency) for _ in range(device)) for _ in range(device)),
    )


def _deal(draw: st.DrawFn, batch: int) -> list[int]:
    """Split `batch` samples into 1 to 3 parts."""
    parts = draw(st.integers(1, min(3, batch)))
    cuts = sorted(draw(st.sets(st.integers(1, batch - 1), min_size=parts - 1, max_size=parts - 1))) if parts > 1 else []
    edges = [0, *cuts, batch]
    return [b - a for a, b in zip(edges, edges[1:], strict=False)]
