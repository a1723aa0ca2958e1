"""A plan as arrays that moves change in place, and its exact round; compiled.

A sketch's score is whole nanoseconds of its round, or SHORT plus the bytes its devices lack: any plan that fits is
better than any that does not, and of those the one that lacks less.
"""

from typing import NamedTuple

import numpy as np

from fleetune.clock import engine
from fleetune.clock import layout as columns
from fleetune.clock.engine import Desk, Tracks, new_desk, new_tracks, play
from fleetune.clock.layout import (
    BACKWARD,
    FIRST,
    FORWARD,
    WARMUP,
    Layout,
    lay_orders,
    lay_routes,
    new_layout,
    reduce_ns,
)
from fleetune.compiled import compiled, inner
from fleetune.solving.hpp.case import ACTIVATION, GRADIENT, OUTPUT, TRAINABLE, Case, Ints, Numbers
from fleetune.solving.hpp.dealing import state_bytes, task_s
from fleetune.solving.hpp.draft import Draft, Stage

SHORT = 1 << 61
NEVER = (1 << 62) + (1 << 61)
MOST_LACK = 1 << 50
"""Counted of each device, so that sums stay below NEVER."""


class Sketch(NamedTuple):
    """Stages in order; members of stage p are first[p]..first[p + 1]."""

    size: Ints
    """[0]: stages."""
    edge: Ints
    """[stage]: its first layer; and one more."""
    first: Ints
    """[stage]; and one more."""
    device: Ints
    """[member]"""
    samples: Ints
    """[member]"""
    warmup: Ints
    """[stage]"""


class Bench(NamedTuple):
    """Where sketches are measured."""

    layout: Layout
    tracks: Tracks
    desk: Desk
    quick: Ints
    """[stage, 7]: of `_quickest`."""
    work: Ints
    """[0]: tasks and transfers simulated so far, and a little for every sketch that needed no simulation."""


def new_sketch(case: Case) -> Sketch:
    """Room for any plan of the case."""
    stages = case.most_stages
    return Sketch(
        size=np.zeros(1, np.int64),
        edge=np.zeros(stages + 1, np.int64),
        first=np.zeros(stages + 1, np.int64),
        device=np.zeros(case.devices, np.int64),
        samples=np.zeros(case.devices, np.int64),
        warmup=np.zeros(stages, np.int64),
    )


def new_bench(case: Case) -> Bench:
    """Room for any plan of the case."""
    stages = case.most_stages
    return Bench(
        layout=new_layout(case.devices, stages, case.numbers.link),
        tracks=new_tracks(case.devices, case.micro_batches, stages),
        desk=new_desk(case.devices, case.micro_batches, stages),
        quick=np.zeros((stages, 7), np.int64),
        work=np.zeros(1, np.int64),
    )


def sketch_of(case: Case, draft: Draft) -> Sketch:
    """The draft as arrays."""
    sketch = new_sketch(case)
    sketch.size[0] = len(draft.stages)
    for p, stage in enumerate(draft.stages):
        sketch.edge[p : p + 2] = stage.first, stage.end
        sketch.first[p + 1] = end = sketch.first[p] + len(stage.devices)
        sketch.device[sketch.first[p] : end] = stage.devices
        sketch.samples[sketch.first[p] : end] = stage.samples
        sketch.warmup[p] = draft.warmups[p]
    return sketch


def draft_of(sketch: Sketch) -> Draft:
    """The arrays as a draft."""
    stages = []
    for p in range(int(sketch.size[0])):
        members = slice(int(sketch.first[p]), int(sketch.first[p + 1]))
        devices, samples = tuple(sketch.device[members].tolist()), tuple(sketch.samples[members].tolist())
        stages.append(Stage(int(sketch.edge[p]), int(sketch.edge[p + 1]), devices, samples))
    return Draft(tuple(stages), tuple(sketch.warmup[: len(stages)].tolist()))


@inner
def copy(source: Sketch, target: Sketch) -> None:
    """Make `target` equal to `source`."""
    stages = source.size[0]
    target.size[0] = stages
    for p in range(stages + 1):
        target.edge[p], target.first[p] = source.edge[p], source.first[p]
    for p in range(stages):
        target.warmup[p] = source.warmup[p]
    for g in range(source.first[stages]):
        target.device[g], target.samples[g] = source.device[g], source.samples[g]


@compiled
def score(numbers: Numbers, sketch: Sketch, bench: Bench, within: int) -> int:
    """The sketch's score, or NEVER where it is certainly not below `within`."""
    layout, stages = bench.layout, sketch.size[0]
    promised = promise(numbers, sketch, bench)
    if promised >= within:
        return NEVER
    if promised >= SHORT:
        return promised
    lay_orders(layout, bench.tracks)
    ends = play(bench.tracks, bench.desk)
    bench.work[0] += bench.desk.sizes[engine.TASKS] + bench.desk.sizes[engine.TRANSFERS]
    for g in range(sketch.first[stages]):
        if bench.desk.member[g, engine.POSITION] < bench.tracks.member[g, engine.LENGTH]:
            return NEVER
    for p in range(stages):
        ends = max(ends, bench.desk.ended[p] + reduce_ns(layout, p))
    return int(ends)


@inner
def promise(numbers: Numbers, sketch: Sketch, bench: Bench) -> int:
    """No score is lower: what its devices lack, else the bound of its round."""
    bench.work[0] += 4 + sketch.first[sketch.size[0]]
    lacking = _fill(numbers, sketch, bench.layout)
    if lacking > 0:
        return SHORT + lacking
    lay_routes(bench.layout, bench.tracks)
    return _at_least_ns(bench)


@inner
def _fill(numbers: Numbers, sketch: Sketch, layout: Layout) -> int:
    """Lay out the sketch; the bytes its devices lack together."""
    stages, lacking = sketch.size[0], 0
    layout.size[0], layout.size[1] = stages, numbers.micro_batches
    for p in range(stages):
        first, end, row = sketch.edge[p], sketch.edge[p + 1], layout.stage[p]
        row[FIRST], layout.stage[p + 1, FIRST], row[WARMUP] = sketch.first[p], sketch.first[p + 1], sketch.warmup[p]
        row[columns.TRAINABLE] = numbers.edge[end, TRAINABLE] - numbers.edge[first, TRAINABLE]
        row[columns.OUTPUT], row[columns.GRADIENT] = numbers.edge[end, OUTPUT], numbers.edge[end, GRADIENT]
        state = state_bytes(numbers, first, end)
        kept = min(sketch.warmup[p], numbers.micro_batches)
        per_sample = kept * (numbers.edge[end, ACTIVATION] - numbers.edge[first, ACTIVATION])
        for g in range(sketch.first[p], sketch.first[p + 1]):
            device, samples, member = sketch.device[g], sketch.samples[g], layout.member[g]
            there, back = task_s(numbers, device, samples, first, end)
            member[columns.DEVICE], member[columns.SAMPLES] = device, samples
            member[FORWARD], member[BACKWARD] = np.int64(np.rint(there * 1e9)), np.int64(np.rint(back * 1e9))
            lacking += max(0, min(MOST_LACK, state + samples * per_sample - numbers.memory_bytes[device]))
    return lacking


@inner
def _at_least_ns(bench: Bench) -> int:
    """No round of what is laid out is shorter.

    A stage starts when a first forward has come through the quickest members and routes before it (`starts`). From
    then on its slowest member has its own work to do, no less than as many round trips through the stages behind as
    its warm-up makes it wait for, and no less than what its ports carry; then the last gradient goes back the same
    way, and the all-reduces of the stages it passes end (`tail`).
    """
    layout, quick = bench.layout, bench.quick
    stages, m = layout.size[0], layout.size[1]
    _quickest(bench)
    behind = 0
    for p in range(stages - 1, -1, -1):
        behind += quick[p, 0] + quick[p, 1]
        quick[p, 4] = behind
        if p > 0:
            behind += quick[p - 1, 2] + quick[p - 1, 3]
    most, starts, tail = 0, 0, 0
    for p in range(stages):
        reduce = reduce_ns(layout, p)
        tail = max(reduce, tail + int(quick[p - 1, 3] + quick[p - 1, 1])) if p > 0 else reduce
        kept = min(layout.stage[p, WARMUP], m)
        trips = (m + kept - 1) // kept * quick[p, 4]
        most = max(most, starts + int(max(m * quick[p, 5], trips)) + tail, starts + int(m * quick[p, 6]))
        starts += int(quick[p, 0] + quick[p, 2])
    return int(most)


@inner
def _quickest(bench: Bench) -> None:
    """Of every stage: least forward and backward of a member, least route there and back across the cut behind it,
    (free), most work of a member, most seconds of a micro-batch on a port; all in ns."""
    layout, tracks, quick = bench.layout, bench.tracks, bench.quick
    stages = layout.size[0]
    for p in range(stages):
        quick[p, 0] = quick[p, 1] = quick[p, 2] = quick[p, 3] = NEVER
        quick[p, 5] = quick[p, 6] = 0
        for g in range(layout.stage[p, FIRST], layout.stage[p + 1, FIRST]):
            there, back, port = layout.member[g, FORWARD], layout.member[g, BACKWARD], 0
            quick[p, 0], quick[p, 1] = min(quick[p, 0], there), min(quick[p, 1], back)
            quick[p, 5] = max(quick[p, 5], there + back)
            for r in range(tracks.member[g, engine.FIRST_ROUTE], tracks.member[g + 1, engine.FIRST_ROUTE]):
                route = tracks.route[r]
                port += route[engine.HOLDS]
                lasts, letter = route[engine.HOLDS] + route[engine.LATENCY], route[engine.LETTER]
                cut = p - letter
                quick[cut, 2 + letter] = min(quick[cut, 2 + letter], lasts)
            quick[p, 6] = max(quick[p, 6], port)
    quick[stages - 1, 2] = quick[stages - 1, 3] = 0
