"""Candidate plans as arrays that moves change in place, and their evaluation by exact simulation; compiled.

A candidate's score is the nanoseconds of its round, or OUT_OF_MEMORY plus the bytes that its devices lack, where each
sample that a device lacks of the fewest of its layers counts as MISSING_SAMPLE_BYTES. So any plan that fits is better
than any that does not, and of two that do not the one with the smaller shortfall.
"""

from typing import NamedTuple

import numpy as np

from fleetune.arrays import Ints
from fleetune.clock import event_loop
from fleetune.clock import pipeline_arrays as columns
from fleetune.clock.event_loop import SimInput, SimState, new_input, new_state
from fleetune.clock.pipeline_arrays import (
    BACKWARD_NS,
    FIRST,
    FORWARD_NS,
    WARMUP,
    PipelineArrays,
    all_reduce_ns,
    fill_orders,
    fill_routes,
    new_arrays,
)
from fleetune.clock.pipeline_simulation import DEADLOCK, play
from fleetune.jit import compiled, inner
from fleetune.solving.hpp.draft import Draft, DraftStage
from fleetune.solving.hpp.instance import ACTIVATION, GRADIENT, OUTPUT, TRAINABLE, Instance, InstanceArrays
from fleetune.solving.hpp.sample_allocation import least_samples, state_bytes, task_s

OUT_OF_MEMORY = 1 << 61
WORST_SCORE = (1 << 62) + (1 << 61)
FASTEST_FORWARD, FASTEST_BACKWARD, ROUTE_FORWARD, ROUTE_BACKWARD, ROUND_TRIP, SLOWEST_WORK, BUSIEST_PORT = range(7)
"""Columns of `Evaluator.minima`, in ns: least forward and backward of a member; least route forward and backward across
the cut behind the stage; least round trip through the stage and all behind it; largest forward plus backward of a
member; largest seconds of a micro-batch on a port."""
MAX_SHORTFALL_BYTES = 1 << 50
"""Limit per device, so that sums stay below WORST_SCORE."""
MISSING_SAMPLE_BYTES = 1 << 40


class Candidate(NamedTuple):
    """A plan as arrays; the members of stage p are first[p] to first[p + 1] - 1, in order."""

    size: Ints
    """[0]: number of stages."""
    edge: Ints
    """[stage + 1]: first layer of the stage, then the number of layers."""
    first: Ints
    """[stage + 1]: first member of the stage, then the number of members."""
    device: Ints
    """[member]"""
    samples: Ints
    """[member]"""
    warmup: Ints
    """[stage]"""


class Evaluator(NamedTuple):
    """Working memory for evaluating candidates."""

    layout: PipelineArrays
    inputs: SimInput
    state: SimState
    minima: Ints
    """[stage, column]: see `_fill_minima`."""
    work: Ints
    """[0]: work done, in simulated tasks and transfers; candidates refused by the bound count a little."""


def new_candidate(instance: Instance) -> Candidate:
    """Arrays for any plan of the instance."""
    stages = instance.max_stages
    return Candidate(
        size=np.zeros(1, np.int64),
        edge=np.zeros(stages + 1, np.int64),
        first=np.zeros(stages + 1, np.int64),
        device=np.zeros(instance.devices, np.int64),
        samples=np.zeros(instance.devices, np.int64),
        warmup=np.zeros(stages, np.int64),
    )


def new_evaluator(instance: Instance) -> Evaluator:
    """Arrays for any plan of the instance."""
    stages = instance.max_stages
    return Evaluator(
        layout=new_arrays(instance.devices, stages, instance.arrays.link),
        inputs=new_input(instance.devices, instance.micro_batches, stages),
        state=new_state(instance.devices, instance.micro_batches, stages),
        minima=np.zeros((stages, 7), np.int64),
        work=np.zeros(1, np.int64),
    )


def candidate_of(instance: Instance, draft: Draft) -> Candidate:
    """Convert a draft to arrays."""
    candidate = new_candidate(instance)
    candidate.size[0] = len(draft.stages)
    for p, stage in enumerate(draft.stages):
        candidate.edge[p : p + 2] = stage.first, stage.end
        candidate.first[p + 1] = end = candidate.first[p] + len(stage.devices)
        candidate.device[candidate.first[p] : end] = stage.devices
        candidate.samples[candidate.first[p] : end] = stage.samples
        candidate.warmup[p] = draft.warmups[p]
    return candidate


def to_draft(candidate: Candidate) -> Draft:
    """Convert arrays to a draft."""
    stages = []
    for p in range(int(candidate.size[0])):
        members = slice(int(candidate.first[p]), int(candidate.first[p + 1]))
        devices, samples = tuple(candidate.device[members].tolist()), tuple(candidate.samples[members].tolist())
        stages.append(DraftStage(int(candidate.edge[p]), int(candidate.edge[p + 1]), devices, samples))
    return Draft(tuple(stages), tuple(candidate.warmup[: len(stages)].tolist()))


@inner
def copy(source: Candidate, target: Candidate) -> None:
    """Copy `source` to `target`."""
    stages = source.size[0]
    target.size[0] = stages
    for p in range(stages + 1):
        target.edge[p], target.first[p] = source.edge[p], source.first[p]
    for p in range(stages):
        target.warmup[p] = source.warmup[p]
    for g in range(source.first[stages]):
        target.device[g], target.samples[g] = source.device[g], source.samples[g]


@compiled
def score(arrays: InstanceArrays, candidate: Candidate, evaluator: Evaluator, limit: int) -> int:
    """Score of the candidate, or WORST_SCORE where it is proven not to be below `limit`."""
    layout = evaluator.layout
    bound = lower_bound(arrays, candidate, evaluator)
    if bound >= limit:
        return WORST_SCORE
    if bound >= OUT_OF_MEMORY:
        return bound
    fill_orders(layout, evaluator.inputs)
    round_ns = play(layout, evaluator.inputs, evaluator.state)
    evaluator.work[0] += evaluator.state.sizes[event_loop.STARTED]
    return WORST_SCORE if round_ns == DEADLOCK else round_ns


@inner
def lower_bound(arrays: InstanceArrays, candidate: Candidate, evaluator: Evaluator) -> int:
    """Lower bound of the score: exact where memory is short, else a bound of the round."""
    evaluator.work[0] += 4 + candidate.first[candidate.size[0]]
    missing = _fill_layout(arrays, candidate, evaluator.layout)
    if missing > 0:
        return OUT_OF_MEMORY + missing
    fill_routes(evaluator.layout, evaluator.inputs)
    return _round_bound_ns(evaluator)


@inner
def _fill_layout(arrays: InstanceArrays, candidate: Candidate, layout: PipelineArrays) -> int:
    """Fill the layout of the simulation; returns the sum over all devices of missing bytes, and of samples as bytes."""
    stages, missing = candidate.size[0], 0
    layout.size[0], layout.size[1] = stages, arrays.micro_batches
    for p in range(stages):
        first, end, row = candidate.edge[p], candidate.edge[p + 1], layout.stage[p]
        row[FIRST], layout.stage[p + 1, FIRST] = candidate.first[p], candidate.first[p + 1]
        row[WARMUP] = candidate.warmup[p]
        row[columns.TRAINABLE] = arrays.edge[end, TRAINABLE] - arrays.edge[first, TRAINABLE]
        row[columns.OUTPUT], row[columns.GRADIENT] = arrays.edge[end, OUTPUT], arrays.edge[end, GRADIENT]
        members = candidate.first[p + 1] - candidate.first[p]
        state, least = state_bytes(arrays, first, end, members), least_samples(arrays, first, end)
        kept = min(candidate.warmup[p], arrays.micro_batches)
        per_sample = kept * (arrays.edge[end, ACTIVATION] - arrays.edge[first, ACTIVATION])
        for g in range(candidate.first[p], candidate.first[p + 1]):
            device, samples, member = candidate.device[g], candidate.samples[g], layout.member[g]
            there, back = task_s(arrays, device, samples, first, end)
            member[columns.DEVICE], member[columns.SAMPLES] = device, samples
            member[FORWARD_NS], member[BACKWARD_NS] = np.int64(np.rint(there * 1e9)), np.int64(np.rint(back * 1e9))
            short = max(0, state + samples * per_sample - arrays.memory_bytes[device])
            missing += min(MAX_SHORTFALL_BYTES, short + MISSING_SAMPLE_BYTES * max(0, least - samples))
    return missing


@inner
def _round_bound_ns(evaluator: Evaluator) -> int:
    """Lower bound in ns of the round of the filled layout.

    A stage cannot start before a first forward has passed the fastest members and routes before it (`starts`). From
    then on it needs at least its slowest member's own work, the round trips through later stages that its warm-up
    makes it wait for, and the traffic of its busiest port. Then the last gradient goes back the same way, and the
    all-reduces of the stages that it passes end (`tail`).
    """
    layout, minima = evaluator.layout, evaluator.minima
    stages, m = layout.size[0], layout.size[1]
    _fill_minima(evaluator)
    behind = 0
    for p in range(stages - 1, -1, -1):
        behind += minima[p, FASTEST_FORWARD] + minima[p, FASTEST_BACKWARD]
        minima[p, ROUND_TRIP] = behind
        if p > 0:
            behind += minima[p - 1, ROUTE_FORWARD] + minima[p - 1, ROUTE_BACKWARD]
    most, starts, tail = 0, 0, 0
    for p in range(stages):
        row, reduce = minima[p], all_reduce_ns(layout, p)
        if p > 0:
            tail = max(reduce, tail + int(minima[p - 1, ROUTE_BACKWARD] + minima[p - 1, FASTEST_BACKWARD]))
        else:
            tail = reduce
        kept = min(layout.stage[p, WARMUP], m)
        trips = (m + kept - 1) // kept * row[ROUND_TRIP]
        most = max(most, starts + int(max(m * row[SLOWEST_WORK], trips)) + tail, starts + int(m * row[BUSIEST_PORT]))
        starts += int(row[FASTEST_FORWARD] + row[ROUTE_FORWARD])
    return int(most)


@inner
def _fill_minima(evaluator: Evaluator) -> None:
    """Fill `evaluator.minima` except for ROUND_TRIP."""
    layout, inputs, minima = evaluator.layout, evaluator.inputs, evaluator.minima
    stages = layout.size[0]
    for p in range(stages):
        row = minima[p]
        row[FASTEST_FORWARD] = row[FASTEST_BACKWARD] = row[ROUTE_FORWARD] = row[ROUTE_BACKWARD] = WORST_SCORE
        row[SLOWEST_WORK] = row[BUSIEST_PORT] = 0
        for g in range(layout.stage[p, FIRST], layout.stage[p + 1, FIRST]):
            there, back, port = layout.member[g, FORWARD_NS], layout.member[g, BACKWARD_NS], 0
            row[FASTEST_FORWARD] = min(row[FASTEST_FORWARD], there)
            row[FASTEST_BACKWARD] = min(row[FASTEST_BACKWARD], back)
            row[SLOWEST_WORK] = max(row[SLOWEST_WORK], there + back)
            for r in range(inputs.member[g, event_loop.FIRST_ROUTE], inputs.member[g + 1, event_loop.FIRST_ROUTE]):
                route = inputs.route[r]
                port += route[event_loop.HOLDS]
                lasts, letter = route[event_loop.HOLDS] + route[event_loop.LATENCY], route[event_loop.LETTER]
                behind = minima[p - letter]
                behind[ROUTE_FORWARD + letter] = min(behind[ROUTE_FORWARD + letter], lasts)
            row[BUSIEST_PORT] = max(row[BUSIEST_PORT], port)
    minima[stages - 1, ROUTE_FORWARD] = minima[stages - 1, ROUTE_BACKWARD] = 0
