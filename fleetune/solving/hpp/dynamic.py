"""Asteroid's dynamic program (Algorithm 2, eq. (4)-(11)) on any order of devices and any set of cut edges."""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from fleetune.compiled import compiled, inner
from fleetune.solving.hpp.case import GRADIENT, OUTPUT, TRAINABLE, Case, Floats, Ints, Numbers
from fleetune.solving.hpp.dealing import LOOSE, NONE, TIGHT, deal_by_capacity, task_s
from fleetune.solving.hpp.draft import Draft, Stage
from fleetune.solving.room import prove_room


class Table(NamedTuple):
    """Best sub-pipelines: the pieces from an edge on, in q stages, on the devices of the order from x on."""

    span_s: Floats
    """[q, edge, x]: M · (E_f + E_b) of the dominant step and the E_f + E_b of the steps before it."""
    tail_s: Floats
    """[q, edge, x]: the most by which an all-reduce outlasts the backwards of the steps before it; eq. (4) is the sum
    of both: T_w + T_e of every step reach the same end but for those backwards."""
    cut: Ints
    """[q, edge, x]: where the head stage ends."""
    head: Ints
    """[q, edge, x]: how many devices it has."""
    between: Floats
    """[x, y, z]: of the links from group [x, y) of the order to group [y, z): least bytes per second there and back,
    largest latency there and back."""
    speed: Floats
    """[edge, edge] memory: samples per second of a group on the pieces between, no less than it can do."""
    shares: Ints
    """[member] memory."""
    stopped: Ints
    """[1]: whoever sets it to 1, from another thread, ends the filling; the table then says nothing."""


class Dynamic:
    """Best sub-pipelines of one order of devices.

    `edges` are the layer edges where stages may begin or end, 0 and L among them. States that cannot be part of a
    round within `bound_s` by eq. (4) are left out. Refused where its tables do not fit into this machine's memory.
    """

    def __init__(
        self, case: Case, order: Ints, edges: Ints, bound_s: float = np.inf, stopped: Ints | None = None
    ) -> None:
        self.case, self.order, self.edges = case, order, edges
        stages = min(len(edges) - 1, len(order))
        if isinstance(case.problem.warmup, tuple):
            stages = min(stages, len(case.problem.warmup))
        prove_room(needed_bytes(len(edges) - 1, len(order)), f"{len(edges) - 1} layers on {len(order)} devices")
        self.table = _new_table(stages, len(edges) - 1, len(order), stopped)
        warmups = np.array([0, *_warmups(case, stages)[::-1]], np.int64)
        _fill(case.numbers, order, warmups, edges, bound_s, self.table)
        self.whole = not self.table.stopped[0]
        """False where the filling was stopped."""

    def totals(self, skipped: int = 0) -> Floats:
        """[stages]: eq. (4) of the best plan without the first `skipped` devices of the order."""
        result = self.table.span_s[:, 0, skipped] + self.table.tail_s[:, 0, skipped]
        if isinstance(self.case.problem.warmup, tuple):
            result[: len(self.case.problem.warmup)] = np.inf
        return np.asarray(result)

    def draft(self, stages: int, skipped: int = 0) -> Draft:
        """The plan behind an entry of `totals`."""
        warmups, result, i, x = self.case.warmups(stages), [], 0, skipped
        for p, k in enumerate(warmups):
            q = stages - p
            j, count = int(self.table.cut[q, i, x]), int(self.table.head[q, i, x])
            group, shares = np.ascontiguousarray(self.order[x : x + count]), np.empty(count, np.int64)
            first, end = int(self.edges[i]), int(self.edges[j])
            deal_by_capacity(self.case.numbers, group, first, end, k, shares)
            result.append(Stage(first, end, tuple(group.tolist()), tuple(shares.tolist())))
            i, x = j, x + count
        return Draft(tuple(result), tuple(warmups))

    def drafts(self) -> Iterator[tuple[float, Draft]]:
        """Every number of stages and every number of devices left out at the head: (eq. (4), plan)."""
        for skipped in range(len(self.order)):
            for stages, total in enumerate(self.totals(skipped)):
                if np.isfinite(total):
                    yield float(total), self.draft(stages, skipped)


def pieces(case: Case, most: int) -> Ints:
    """About `most` runs of equal work as edges, where cuts cost least nearby."""
    work = np.mean(case.least_s, axis=0)
    if case.layers <= most:
        return np.arange(case.layers + 1)
    targets = work[-1] * np.arange(1, most) / most
    crossing = (case.output_bytes + case.gradient_bytes).astype(np.float64)
    edges = {0, case.layers}
    for target in targets:
        near = np.flatnonzero(np.abs(work - target) <= work[-1] / most / 2)
        near = near[(near > 0) & (near < case.layers)]
        edges.add(int(near[np.argmin(crossing[near])]) if len(near) else int(np.searchsorted(work[:-1], target)))
    return np.array(sorted(edges), np.int64)


def _warmups(case: Case, stages: int) -> list[int]:
    policy = case.problem.warmup
    return list(policy[-stages:]) if isinstance(policy, tuple) else case.warmups(stages)


def needed_bytes(pieces: int, devices: int) -> int:
    """Of the tables for so many pieces."""
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
        between=np.zeros((devices + 1, devices + 1, devices + 1, 4)),
        speed=np.zeros((pieces + 1, pieces + 1)),
        shares=np.zeros(devices, np.int64),
        stopped=np.zeros(1, np.int64) if stopped is None else stopped,
    )


@compiled
def _fill(numbers: Numbers, order: Ints, warmups: Ints, edges: Ints, bound_s: float, table: Table) -> None:
    """Algorithm 2, from the last devices to the first, skipping what cannot be part of a round within `bound_s`."""
    devices, pieces, speed = order.size, edges.size - 1, table.speed
    _link_up(numbers, order, table.between)
    for x in range(devices - 1, -1, -1):
        for i in range(pieces):
            if table.stopped[0] != 0:
                return
            for j in range(pieces + 1):
                speed[i, j] = 0.0
        for count in range(1, devices - x + 1):
            slowest = _slowest_inside(numbers, order[x : x + count])
            for i in range(pieces):
                if table.stopped[0] != 0:
                    return
                for j in range(i + 1, pieces + 1):
                    least = numbers.least_s[order[x + count - 1]]
                    speed[i, j] += 1.0 / max(least[edges[j]] - least[edges[i]], 1e-15)
                    if numbers.micro_batches * batch_of(numbers) > bound_s * speed[i, j]:
                        continue
                    if (x + count == devices) == (j == pieces):
                        _head(numbers, (order, warmups, edges), (i, j, x, count), slowest, table)


@inner
def batch_of(numbers: Numbers) -> int:
    """Samples of a micro-batch."""
    return int(numbers.seconds.shape[1] - 1)


@inner
def _head(
    numbers: Numbers,
    given: tuple[Ints, Ints, Ints],
    seat: tuple[int, int, int, int],
    slowest: float,
    table: Table,
) -> None:
    """Put pieces [i, j) on a group before every sub-pipeline behind it. The shares are dealt once for all positions
    in the pipeline whose warm-ups memory does not feel, most demanding first."""
    order, warmups, edges = given
    i, j, x, count = seat
    last = j == edges.size - 1
    most = 1 if last else min(warmups.size - 1, min(order.size - x - count, edges.size - 1 - j) + 1)
    group, dealt, first, end = order[x : x + count], table.shares[:count], edges[i], edges[j]
    reduce_s = 0.0
    if count > 1:
        trainable = numbers.edge[end, TRAINABLE] - numbers.edge[first, TRAINABLE]
        reduce_s = 2 * (count - 1) * trainable / (count * slowest)
    outcome, there, back = TIGHT, 0.0, 0.0
    for q in range(most, 0 if last else 1, -1):
        if not last and not np.isfinite(table.span_s[q - 1, j, x + count]):
            continue
        if outcome != LOOSE:
            outcome = deal_by_capacity(numbers, group, first, end, warmups[q], dealt)
            if outcome != NONE:
                there, back = _slowest_task(numbers, group, first, end, dealt)
        if outcome != NONE:
            _extend(numbers, table, (q, i, j, x, count, end), (there, back, reduce_s))


@inner
def _slowest_inside(numbers: Numbers, group: Ints) -> float:
    """Bytes per second of the slowest link between two devices of a group."""
    slowest = np.inf
    for a in group:
        for b in group:
            if a != b:
                slowest = min(slowest, numbers.link[a, b, 0])
    return slowest


@inner
def _slowest_task(numbers: Numbers, group: Ints, first: int, end: int, shares: Ints) -> tuple[float, float]:
    """E_f and E_b, eq. (8)."""
    there, back = 0.0, 0.0
    for k in range(group.size):
        f, b = task_s(numbers, group[k], shares[k], first, end)
        there, back = max(there, f), max(back, b)
    return there, back


@inner
def _extend(
    numbers: Numbers,
    table: Table,
    seat: tuple[int, int, int, int, int, int],
    costs: tuple[float, float, float],
) -> None:
    """Put a head stage before the best sub-pipeline behind it, eq. (10) and (11), and keep the better one."""
    q, i, j, x, count, edge = seat
    there, back, reduce_s = costs
    both, m = there + back, numbers.micro_batches
    span, tail = m * both, reduce_s
    if q > 1:
        y = x + count
        behind = table.span_s[q - 1, j, y]
        link, samples = table.between[x, y, y + table.head[q - 1, j, y]], batch_of(numbers)
        cross_there = samples * numbers.edge[edge, OUTPUT] / link[0] + link[2]
        cross_back = samples * numbers.edge[edge, GRADIENT] / link[1] + link[3]
        crossing = cross_there + cross_back
        span = max(span, max(m * crossing + both, behind + both + crossing))
        tail = max(reduce_s, table.tail_s[q - 1, j, y] - back - cross_back)
    if span + tail < table.span_s[q, i, x] + table.tail_s[q, i, x]:
        table.span_s[q, i, x], table.tail_s[q, i, x] = span, tail
        table.cut[q, i, x], table.head[q, i, x] = j, count


@inner
def _link_up(numbers: Numbers, order: Ints, result: Floats) -> None:
    """Fill `Table.between`."""
    devices = order.size
    for y in range(1, devices):
        for x in range(y - 1, -1, -1):
            a = order[x]
            there, back, late_there, late_back = np.inf, np.inf, 0.0, 0.0
            for z in range(y + 1, devices + 1):
                b, known = order[z - 1], result[x + 1, y, z]
                there, back = min(there, numbers.link[a, b, 0]), min(back, numbers.link[b, a, 0])
                late_there = max(late_there, numbers.link[a, b, 1])
                late_back = max(late_back, numbers.link[b, a, 1])
                row = result[x, y, z]
                row[0], row[1], row[2], row[3] = there, back, late_there, late_back
                if x + 1 < y:
                    row[0], row[1] = min(there, known[0]), min(back, known[1])
                    row[2], row[3] = max(late_there, known[2]), max(late_back, known[3])
