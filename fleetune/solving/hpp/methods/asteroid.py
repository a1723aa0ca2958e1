"""asteroid: the paper's planner, as written.

Ye, S. et al.: Asteroid: Resource-Efficient Hybrid Pipeline Parallelism for Collaborative DNN Training on Heterogeneous
Edge Devices. MobiCom 2024. doi:10.1145/3636534.3649363. Algorithm 1 allocates the samples of a group, Algorithm 2 finds
stages and groups by dynamic programming over eq. (4)-(11).

It respects memory, uneven devices and links. It takes the devices in descending order of memory, groups neighbours of
that order only, uses every device, keeps one best sub-pipeline per state, and minimises its own formula instead of the
exact simulation (`search` lifts these limits). Where `warmup` is `free` it takes the paper's 2(P-p)-1.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from fleetune.arrays import Floats, Ints
from fleetune.errors import Infeasible
from fleetune.jit import compiled, inner
from fleetune.solving.hpp.chain_cuts import coarse_edges
from fleetune.solving.hpp.draft import Draft, DraftStage
from fleetune.solving.hpp.instance import GRADIENT, OUTPUT, TRAINABLE, Instance, InstanceArrays
from fleetune.solving.hpp.sample_allocation import IMPOSSIBLE, MEMORY_AMPLE, MEMORY_BOUND, allocate_by_capacity, task_s
from fleetune.solving.limits import require_memory

COARSE = 24
"""Pieces of the first, coarse pass, whose result bounds the second."""


def plan(instance: Instance, stopped: Ints | None = None) -> Draft:
    """The plan with the least eq. (4).

    A coarse pass on few pieces gives an upper bound for the pass on all layers, which skips what cannot be part of a
    better round. That changes no answer: where the bound is missed, the second pass is repeated without it. Infeasible
    where no plan of all devices fits their memories, or where another thread set `stopped` ([1]) before one was found.
    """
    order = np.argsort(-instance.memory_bytes, kind="stable")
    edges = np.arange(instance.layers + 1)
    bound_s = np.inf
    if instance.layers > COARSE:
        bound_s = float(np.min(PipelineDP(instance, order, coarse_edges(instance, COARSE)).totals()))
    dp = PipelineDP(instance, order, edges, bound_s * (1 + 1e-9), stopped)
    if np.min(dp.totals()) > bound_s and dp.whole:
        dp = PipelineDP(instance, order, edges, stopped=stopped)
    if not dp.whole:
        raise Infeasible("asteroid: time was up before a plan was found; give more")
    stages = int(np.argmin(dp.totals()))
    if not np.isfinite(dp.totals()[stages]):
        raise Infeasible(
            f"asteroid: no plan that uses all {instance.devices} devices in descending order of memory fits their "
            f"memories{' and has the samples that each needs' if instance.max_group < instance.samples else ''}; the "
            "method search leaves devices out and tries other orders"
        )
    return dp.draft(stages)


class DPInput(NamedTuple):
    """Order of devices, warm-ups and cut edges that the program is solved for."""

    order: Ints
    """[position]: device."""
    warmups: Ints
    """[q]: K of a stage with q - 1 stages behind it."""
    edges: Ints
    """[piece + 1]: layer edges where stages may begin or end."""


class HeadStage(NamedTuple):
    """The first stage of a sub-pipeline: pieces [first, end) on `size` devices of the order from `position` on."""

    first: int
    end: int
    position: int
    size: int


class StageTimes(NamedTuple):
    """E_f, E_b and T_a of a stage."""

    forward_s: float
    backward_s: float
    all_reduce_s: float


class Table(NamedTuple):
    """Best sub-pipelines of q stages, of the pieces from an edge on, on the devices of the order from x on."""

    span_s: Floats
    """[q, edge, x]: M · (E_f + E_b) of the dominant step and the E_f + E_b of the steps before it."""
    tail_s: Floats
    """[q, edge, x]: the most by which an all-reduce outlasts the backwards of the steps before it. Eq. (4) is the sum
    of span_s and tail_s, since T_w + T_e of all steps end together except for these backwards."""
    cut: Ints
    """[q, edge, x]: edge where the head stage ends."""
    head: Ints
    """[q, edge, x]: number of devices of the head stage."""
    links: Floats
    """[x, y, z, 4]: least bytes per second forward and backward, largest latency forward and backward, of the links
    between the groups [x, y) and [y, z) of the order."""
    speed: Floats
    """Scratch buffer [edge, edge]: upper bound of a group's samples per second on the pieces between."""
    shares: Ints
    """Scratch buffer [member]."""
    stopped: Ints
    """[1]: another thread sets it to 1 to stop the filling; the table is then invalid."""


class PipelineDP:
    """The dynamic program (Algorithm 2, eq. (4)-(11)): best pipelines for one order of devices.

    `edges` are the layer edges where stages may begin or end, 0 and L included. States that cannot be part of a round
    within `bound_s` by eq. (4) are skipped. Refused where the tables do not fit into this machine's memory.
    """

    def __init__(
        self, instance: Instance, order: Ints, edges: Ints, bound_s: float = np.inf, stopped: Ints | None = None
    ) -> None:
        self.instance, self.order, self.edges = instance, order, edges
        stages = min(len(edges) - 1, len(order))
        if isinstance(instance.problem.warmup, tuple):
            stages = min(stages, len(instance.problem.warmup))
        require_memory(needed_bytes(len(edges) - 1, len(order)), f"{len(edges) - 1} layers on {len(order)} devices")
        self.table = _new_table(stages, len(edges) - 1, len(order), stopped)
        warmups = np.array([0, *_warmups(instance, stages)[::-1]], np.int64)
        _fill(instance.arrays, DPInput(order, warmups, edges), bound_s, self.table)
        self.whole = not self.table.stopped[0]
        """False where the filling was stopped."""

    def totals(self, skipped: int = 0) -> Floats:
        """[number of stages]: eq. (4) in seconds of the best plan without the first `skipped` devices of the order."""
        result = self.table.span_s[:, 0, skipped] + self.table.tail_s[:, 0, skipped]
        if isinstance(self.instance.problem.warmup, tuple):
            result[: len(self.instance.problem.warmup)] = np.inf
        return np.asarray(result)

    def draft(self, stages: int, skipped: int = 0) -> Draft:
        """The plan whose eq. (4) `totals` gives for `stages`."""
        warmups, result, i, x = self.instance.warmups(stages), [], 0, skipped
        for p, k in enumerate(warmups):
            q = stages - p
            j, count = int(self.table.cut[q, i, x]), int(self.table.head[q, i, x])
            group, shares = np.ascontiguousarray(self.order[x : x + count]), np.empty(count, np.int64)
            first, end = int(self.edges[i]), int(self.edges[j])
            allocate_by_capacity(self.instance.arrays, group, first, end, k, shares)
            result.append(DraftStage(first, end, tuple(group.tolist()), tuple(shares.tolist())))
            i, x = j, x + count
        return Draft(tuple(result), tuple(warmups))

    def drafts(self) -> Iterator[tuple[float, Draft]]:
        """Yield (eq. (4) in seconds, plan) for every number of stages and of devices skipped at the head."""
        for skipped in range(len(self.order)):
            for stages, total in enumerate(self.totals(skipped)):
                if np.isfinite(total):
                    yield float(total), self.draft(stages, skipped)


def _warmups(instance: Instance, stages: int) -> list[int]:
    policy = instance.problem.warmup
    return list(policy[-stages:]) if isinstance(policy, tuple) else instance.warmups(stages)


def needed_bytes(pieces: int, devices: int) -> int:
    """Bytes of the tables for a chain of `pieces` runs of layers."""
    return 8 * (
        (pieces + 1) ** 2 + 4 * (min(pieces, devices) + 1) * (pieces + 1) * (devices + 1) + 4 * (devices + 1) ** 3
    )


def _new_table(stages: int, pieces: int, devices: int, stopped: Ints | None) -> Table:
    shape = (stages + 1, pieces + 1, devices + 1)
    return Table(
        span_s=np.full(shape, np.inf),
        tail_s=np.full(shape, np.inf),
        cut=np.zeros(shape, np.int64),
        head=np.zeros(shape, np.int64),
        links=np.zeros((devices + 1, devices + 1, devices + 1, 4)),
        speed=np.zeros((pieces + 1, pieces + 1)),
        shares=np.zeros(devices, np.int64),
        stopped=np.zeros(1, np.int64) if stopped is None else stopped,
    )


@compiled
def _fill(arrays: InstanceArrays, given: DPInput, bound_s: float, table: Table) -> None:
    """Algorithm 2, from the last devices to the first, skipping what cannot be part of a round within `bound_s`."""
    order, edges = given.order, given.edges
    devices, pieces, speed = order.size, edges.size - 1, table.speed
    _fill_links(arrays, order, table.links)
    for x in range(devices - 1, -1, -1):
        for i in range(pieces):
            if table.stopped[0] != 0:
                return
            for j in range(pieces + 1):
                speed[i, j] = 0.0
        for count in range(1, devices - x + 1):
            slowest = _slowest_inside(arrays, order[x : x + count])
            for i in range(pieces):
                if table.stopped[0] != 0:
                    return
                for j in range(i + 1, pieces + 1):
                    least = arrays.best_s[order[x + count - 1]]
                    speed[i, j] += 1.0 / max(least[edges[j]] - least[edges[i]], 1e-15)
                    if arrays.micro_batches * batch_of(arrays) > bound_s * speed[i, j]:
                        continue
                    if (x + count == devices) == (j == pieces):
                        _place_head(arrays, given, HeadStage(i, j, x, count), slowest, table)


@inner
def batch_of(arrays: InstanceArrays) -> int:
    """Samples of a micro-batch."""
    return int(arrays.seconds.shape[1] - 1)


@inner
def _place_head(arrays: InstanceArrays, given: DPInput, head: HeadStage, slowest: float, table: Table) -> None:
    """Put a head stage before every sub-pipeline behind it; slowest: bytes per second of its slowest inner link.

    Positions in the pipeline are visited from the most demanding warm-up down, and share one allocation of samples
    from the first that memory does not limit.
    """
    order, warmups, edges = given
    i, j, x, count = head
    last = j == edges.size - 1
    most = 1 if last else min(warmups.size - 1, min(order.size - x - count, edges.size - 1 - j) + 1)
    group, shares, first, end = order[x : x + count], table.shares[:count], edges[i], edges[j]
    reduce_s = 0.0
    if count > 1:
        trainable = arrays.edge[end, TRAINABLE] - arrays.edge[first, TRAINABLE]
        reduce_s = 2 * (count - 1) * trainable / (count * slowest)
    outcome, forward_s, backward_s = MEMORY_BOUND, 0.0, 0.0
    for q in range(most, 0 if last else 1, -1):
        if not last and not np.isfinite(table.span_s[q - 1, j, x + count]):
            continue
        if outcome != MEMORY_AMPLE:
            outcome = allocate_by_capacity(arrays, group, first, end, warmups[q], shares)
            if outcome != IMPOSSIBLE:
                forward_s, backward_s = _slowest_task(arrays, group, first, end, shares)
        if outcome != IMPOSSIBLE:
            _extend(arrays, table, head, q, end, StageTimes(forward_s, backward_s, reduce_s))


@inner
def _slowest_inside(arrays: InstanceArrays, group: Ints) -> float:
    """Bytes per second of the slowest link between two devices of a group."""
    slowest = np.inf
    for a in group:
        for b in group:
            if a != b:
                slowest = min(slowest, arrays.link[a, b, 0])
    return slowest


@inner
def _slowest_task(arrays: InstanceArrays, group: Ints, first: int, end: int, shares: Ints) -> tuple[float, float]:
    """Forward and backward seconds of the slowest member: E_f and E_b, eq. (8)."""
    there, back = 0.0, 0.0
    for k in range(group.size):
        f, b = task_s(arrays, group[k], shares[k], first, end)
        there, back = max(there, f), max(back, b)
    return there, back


@inner
def _extend(
    arrays: InstanceArrays,
    table: Table,
    head: HeadStage,
    q: int,
    edge: int,
    times: StageTimes,
) -> None:
    """Put a head stage before the best q - 1 stages behind it, eq. (10) and (11), and keep the pipeline if it is the
    best of its state; edge: layer edge at the head's end."""
    i, j, x, count = head
    there, back, reduce_s = times
    both, m = there + back, arrays.micro_batches
    span, tail = m * both, reduce_s
    if q > 1:
        y = x + count
        behind = table.span_s[q - 1, j, y]
        link, samples = table.links[x, y, y + table.head[q - 1, j, y]], batch_of(arrays)
        cross_there = samples * arrays.edge[edge, OUTPUT] / link[0] + link[2]
        cross_back = samples * arrays.edge[edge, GRADIENT] / link[1] + link[3]
        crossing = cross_there + cross_back
        span = max(span, max(m * crossing + both, behind + both + crossing))
        tail = max(reduce_s, table.tail_s[q - 1, j, y] - back - cross_back)
    if span + tail < table.span_s[q, i, x] + table.tail_s[q, i, x]:
        table.span_s[q, i, x], table.tail_s[q, i, x] = span, tail
        table.cut[q, i, x], table.head[q, i, x] = j, count


@inner
def _fill_links(arrays: InstanceArrays, order: Ints, result: Floats) -> None:
    """Fill `Table.links`."""
    devices = order.size
    for y in range(1, devices):
        for x in range(y - 1, -1, -1):
            a = order[x]
            there, back, late_there, late_back = np.inf, np.inf, 0.0, 0.0
            for z in range(y + 1, devices + 1):
                b, known = order[z - 1], result[x + 1, y, z]
                there, back = min(there, arrays.link[a, b, 0]), min(back, arrays.link[b, a, 0])
                late_there = max(late_there, arrays.link[a, b, 1])
                late_back = max(late_back, arrays.link[b, a, 1])
                row = result[x, y, z]
                row[0], row[1], row[2], row[3] = there, back, late_there, late_back
                if x + 1 < y:
                    row[0], row[1] = min(there, known[0]), min(back, known[1])
                    row[2], row[3] = max(late_there, known[2]), max(late_back, known[3])
