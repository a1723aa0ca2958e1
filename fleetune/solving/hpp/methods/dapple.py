"""dapple: hybrid parallelism planned for a homogeneous cluster, by the latency of a synchronous pipeline.

Fan, S. et al.: DAPPLE: A Pipelined Data Parallel Approach for Training Large Models. PPoPP 2021, arXiv:2007.01045, §4.
Stages and the transfers between them are steps s with times F_s and B_s, and L = T_w + T_s + T_e with a pivot step Q:
T_w = forwards up to Q, T_s = (M - 1)(F_Q + B_Q), T_e = the latest end of a step's last backward and all-reduce, counted
from the start of Q's last backward. The pivot moves from the last step to the front, to every s with
(M - 1)(F_s + B_s) > (M - 1)(F_Q + B_Q) + all F + B strictly between. With key_s = M (F_s + B_s) + all F + B before s,
that is key_s > key_Q - (F_Q + B_Q), and L = key_Q + max_s (all-reduce_s - all B before s). This form is computed here.

The planner splits stages off the front, the rest staying one last stage, and keeps one best plan per (layers, devices)
split off. Each device is a machine of its own, where its three placements (fresh first, append first, scatter first)
are all the next devices in the order given.

It takes activations, weights, replication and M into account; it takes all devices and links for the average one,
splits samples evenly, and ignores memory and latency.
"""

from typing import NamedTuple

import numpy as np

from fleetune.arrays import Floats, Ints
from fleetune.solving.hpp.draft import Draft, HomogeneousFleet
from fleetune.solving.hpp.instance import Instance

RUNS, LISTED_RUNS = 256, 64
"""Longer chains of layers are joined into this many runs; fewer where warm-ups are listed, which needs one table per
number of stages."""


class Split(NamedTuple):
    """Best plans that split the first runs off onto the first devices, [edge, devices]."""

    latency_s: Floats
    """L with the rest as one stage on the other devices."""
    steps: Ints
    """Number of stages and transfers split off."""
    before_s: Floats
    """Sum of their F + B."""
    backward_s: Floats
    """Sum of their B."""
    tail_s: Floats
    """Maximum of all-reduce_s - all B before s."""
    key_s: Floats
    """[step, edge, devices]: key_s, the last step first; -inf beyond the first."""
    step_s: Floats
    """[step, edge, devices]: F_s + B_s."""
    came: Ints
    """[edge, devices, 2]: edge and devices before the last split."""


class Steps(NamedTuple):
    """F + B, B and all-reduce seconds of candidate stages or transfers."""

    both_s: Floats
    backward_s: Floats
    reduce_s: Floats


class Extensions(NamedTuple):
    """Plans that split one more stage off, [edge before, pair of device counts]; fields as in Split."""

    latency_s: Floats
    before_s: Floats
    backward_s: Floats
    tail_s: Floats
    key_s: tuple[Floats, Floats]
    """key_s of the stage, and of the transfer into it (-inf for the first stage)."""
    step_s: tuple[Floats, Floats]


State = tuple[Ints, Ints]
"""Edges and devices split off; or rows and columns of Extensions."""
Pairs = tuple[Ints, Ints]
"""Numbers of devices split off after and before a stage."""


class NewStates(NamedTuple):
    """States that are written together, all at one edge."""

    edge: int
    counts: Ints
    """Devices split off, by state."""
    origin: State
    """The old states that they extend."""


def plan(instance: Instance) -> Draft:
    """A plan on all devices that can have a sample, in as many stages as warm-ups are listed."""
    return estimated(instance)[0]


def estimated(instance: Instance) -> tuple[Draft, float]:
    """The plan, and its estimated latency L in seconds."""
    fleet = HomogeneousFleet(instance, RUNS if isinstance(instance.problem.warmup, str) else LISTED_RUNS)
    tables = [_nothing(fleet)]
    if fleet.stages is None:
        pairs = _pairs(fleet, 1, fleet.count - 1)
        for edge in range(1, fleet.runs):
            _split(fleet, tables[0], tables[0], edge, pairs)
    for p in range(1, fleet.stages or 1):
        left = (fleet.stages or 1) - p
        pairs = _pairs(fleet, p, fleet.count - left)
        tables.append(_unreached(fleet))
        for edge in range(p, fleet.runs - left + 1):
            _split(fleet, tables[-2], tables[-1], edge, pairs)
    return _read(fleet, tables)


def _unreached(fleet: HomogeneousFleet) -> Split:
    shape = (fleet.runs + 1, fleet.count + 1)
    deep = (2 * min(fleet.count, fleet.runs), *shape)
    return Split(
        latency_s=np.full(shape, np.inf),
        steps=np.zeros(shape, np.int64),
        before_s=np.zeros(shape),
        backward_s=np.zeros(shape),
        tail_s=np.full(shape, -np.inf),
        key_s=np.full(deep, -np.inf),
        step_s=np.zeros(deep),
        came=np.zeros((*shape, 2), np.int64),
    )


def _nothing(fleet: HomogeneousFleet) -> Split:
    """The table with nothing split off: one stage on all devices."""
    table = _unreached(fleet)
    whole = _stage(fleet, 0, fleet.runs, fleet.count)
    table.latency_s[0, 0] = fleet.instance.micro_batches * whole.both_s + whole.reduce_s
    return table


def _stage(fleet: HomogeneousFleet, first: int | Ints, end: int, size: int | Ints) -> Steps:
    """Times of runs [first, end) on `size` average devices."""
    forward_s = (fleet.forward_s[end] - fleet.forward_s[first]) / size
    backward_s = (fleet.backward_s[end] - fleet.backward_s[first]) / size
    weights = fleet.trainable_bytes[end] - fleet.trainable_bytes[first]
    return Steps(forward_s + backward_s, backward_s, 2 * (size - 1) / size * weights / fleet.bandwidth)


def _split(fleet: HomogeneousFleet, old: Split, new: Split, edge: int, pairs: Pairs) -> None:
    """Fill new[edge] with the best plan per number of devices that splits a stage up to `edge` off a plan of `old`."""
    after, before = pairs
    if not len(after):
        return
    extensions = _extensions(fleet, old, edge, pairs)
    rows = np.argmin(extensions.latency_s, axis=0)
    best = np.full((fleet.count, fleet.count), np.inf)
    best[after, before] = extensions.latency_s[rows, np.arange(len(rows))]
    column = np.zeros(best.shape, np.int64)
    column[after, before] = np.arange(len(rows))
    m = np.flatnonzero(np.min(best, axis=1) < np.inf)
    columns = column[m, np.argmin(best[m], axis=1)]
    states = NewStates(edge, m, (rows[columns], before[columns]))
    _keep(old, new, extensions, (rows[columns], columns), states)


def _extensions(fleet: HomogeneousFleet, old: Split, edge: int, pairs: Pairs) -> Extensions:
    """Evaluate every edge before `edge` with every pair of device counts after and before the split."""
    devices, before = pairs
    micro_batches, at = fleet.instance.micro_batches, (slice(0, edge), before)
    first = np.arange(edge)[:, None]
    old_before_s, old_backward_s = old.before_s[at], old.backward_s[at]
    into_s = np.where(first > 0, (fleet.output_s + fleet.gradient_s)[first], 0.0)
    out_s = float(fleet.output_s[edge] + fleet.gradient_s[edge])
    stage = _stage(fleet, first, edge, devices - before)
    rest = _stage(fleet, edge, fleet.runs, fleet.count - devices)

    stage_at = old_before_s + into_s
    out_at = stage_at + stage.both_s
    stage_key = micro_batches * stage.both_s + stage_at
    into_key = np.where(first > 0, micro_batches * into_s + old_before_s, -np.inf)
    key = micro_batches * rest.both_s + out_at + out_s
    step = np.broadcast_to(rest.both_s, key.shape)
    earlier = ((old.key_s[k][at], old.step_s[k][at]) for k in range(int(np.max(old.steps[:edge]))))
    out_key = micro_batches * out_s + out_at
    for s_key, s_step in ((out_key, out_s), (stage_key, stage.both_s), (into_key, into_s), *earlier):
        moves = s_key > key - step
        key, step = np.where(moves, s_key, key), np.where(moves, s_step, step)

    backward_at = old_backward_s + np.where(first > 0, fleet.gradient_s[first], 0.0)
    backward_s = backward_at + stage.backward_s
    tail_s = np.maximum(old.tail_s[at], stage.reduce_s - backward_at)
    last_s = np.maximum(tail_s, rest.reduce_s - backward_s - fleet.gradient_s[edge])
    return Extensions(
        latency_s=np.where(np.isfinite(old.latency_s[at]), key + last_s, np.inf),
        before_s=out_at,
        backward_s=backward_s,
        tail_s=tail_s,
        key_s=(stage_key, into_key),
        step_s=(stage.both_s, np.broadcast_to(into_s, out_at.shape)),
    )


def _keep(old: Split, new: Split, extensions: Extensions, way: State, states: NewStates) -> None:
    """Write extensions of old states into new ones, their steps before those of the old."""
    edge, m, origin = states
    new.latency_s[edge, m], new.before_s[edge, m] = extensions.latency_s[way], extensions.before_s[way]
    new.backward_s[edge, m], new.tail_s[edge, m] = extensions.backward_s[way], extensions.tail_s[way]
    new.steps[edge, m] = old.steps[origin] + len(extensions.key_s)
    new.came[edge, m] = np.stack(origin, axis=1)
    for k, (key_s, step_s) in enumerate(zip(extensions.key_s, extensions.step_s, strict=True)):
        new.key_s[k, edge, m], new.step_s[k, edge, m] = key_s[way], step_s[way]
    added = len(extensions.key_s)
    new.key_s[added:, edge, m] = old.key_s[:-added, origin[0], origin[1]]
    new.step_s[added:, edge, m] = old.step_s[:-added, origin[0], origin[1]]


def _pairs(fleet: HomogeneousFleet, stage: int, most: int) -> Pairs:
    """Device counts after and before stage `stage` (from 1): at least one per stage before, `most` at most after."""
    after, before = np.tril_indices(most + 1, -1)
    allowed = (after >= stage) & (before >= stage - 1) & (after - before <= fleet.group)
    return after[allowed], before[allowed]


def _read(fleet: HomogeneousFleet, tables: list[Split]) -> tuple[Draft, float]:
    """Walk back from the least latency whose last stage has a sample for every device; returns the plan and that L."""
    latency_s = tables[-1].latency_s.copy()
    latency_s[:, : max(fleet.count - fleet.group, 0)] = np.inf
    edge, m = (int(x) for x in np.unravel_index(int(np.argmin(latency_s)), latency_s.shape))
    best_s = float(latency_s[edge, m])
    cuts, sizes, depth = [fleet.runs, edge], [fleet.count - m], len(tables) - 1
    while edge > 0:
        edge, before = (int(x) for x in tables[max(depth, 0)].came[edge, m])
        cuts.append(edge)
        sizes.append(m - before)
        m, depth = before, depth - 1
    return fleet.draft(cuts[::-1], sizes[::-1]), best_s
