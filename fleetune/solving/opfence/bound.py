"""A time that no placement that fits the memories can beat.

Let T be the most that a device computes or receives: eq. (3) is a sum S plus (n - 1) T. Two relaxations bound S for a
given T from below, and both fall as T grows, so that the best over all T is bracketed on a grid that is refined where
it is lowest. (1) A path of the graph, alone: devices may come again, all other operators run on the fastest device
for nothing but their compute; every transfer sends the least that any ratio of AdaTopK leaves of it. (2) All flops,
divided at will: the fastest devices first, each up to T and to what its memory holds at best; as many devices as that
takes at least are joined by as many of the quickest transfers.
"""

import numpy as np

from fleetune.solving.opfence.case import Case
from fleetune.solving.opfence.graph import components
from fleetune.solving.opfence.line import Line
from fleetune.solving.opfence.walk import Limits, Walk
from fleetune.solving.opfence.watch import ENDLESS, Watch
from fleetune.solving.proofs import Floats

GRID = 12
ROUNDS = 3
ROUNDING = 1e-9
"""Relative; what sums of many numbers may be off by."""
MOST_WORK = 40_000_000
"""Steps of the walk times pairs of devices times grid, beyond which the path is left out."""


def lower_bound_s(case: Case, known_s: float, watch: Watch = ENDLESS) -> float:
    """Seconds; known_s: what some placement takes, above which nothing need be looked at.

    watch: once it is over, the path is left out, which takes most of the time.
    """
    relaxed = _Relaxed(case, watch)
    least = relaxed.least_slowest_s()
    rounds = case.rounds - 1
    grid = np.unique(np.append(np.linspace(least, max(known_s / case.rounds, least), GRID), least))
    sums = relaxed.sums(grid)
    for _ in range(ROUNDS):
        lows = _lows(grid, sums, rounds)
        at = int(np.argmin(lows))
        if at + 1 == len(grid) or rounds == 0:
            break
        finer = np.linspace(grid[at], grid[at + 1], GRID)[1:-1]
        merged = np.concatenate([grid, finer])
        order = np.argsort(merged, kind="stable")
        grid, sums = merged[order], np.concatenate([sums, relaxed.sums(finer)])[order]
    bound = float(_lows(grid, sums, rounds).min())
    return max(0.0, min(bound * (1 - ROUNDING), known_s))


def _lows(grid: Floats, sums: Floats, rounds: int) -> Floats:
    """Eq. (3) is at least this for T from each of the grid to the next; beyond the last it is above what is known."""
    at_most = np.append(sums[1:], sums[-1])
    found: Floats = at_most + rounds * grid
    return found


class _Relaxed:
    def __init__(self, case: Case, watch: Watch) -> None:
        self.case = case
        self.weight = case.codec.least_share
        path = heaviest_path(case)
        self.path = _line(case, path)
        self.beside_s = (case.flops.sum() - case.flops[path].sum()) / case.speed.max()
        self.walk = Walk(case, self.path, once=False, weight=self.weight, watch=watch)
        self.small = len(path) * case.devices**2 * GRID <= MOST_WORK
        self.by_speed = np.argsort(-case.speed, kind="stable")
        self.held = _flops_held(case)
        self.link_s = _quickest(case, self.weight)
        self.parts = len(components(range(case.operators), case.parents))
        """Weakly connected parts of the graph; that many devices need no link."""

    def least_slowest_s(self) -> float:
        """No T is smaller: all devices together must do all flops, and one of them the largest operator."""
        total = self.case.flops.sum()
        alone = self.case.flops.max() / self.case.speed.max()
        low, high = max(total / self.case.speed.sum(), alone), max(total / self.case.speed.min(), alone)
        for _ in range(60):
            middle = (low + high) / 2
            enough = np.minimum(middle * self.case.speed, self.held).sum() >= total * (1 - ROUNDING)
            low, high = (low, middle) if enough else (middle, high)
        return float(low)

    def sums(self, slowest_s: Floats) -> Floats:
        """[T] of the least sum of computing and receiving."""
        found = np.array([self._divided_s(limit) for limit in slowest_s.tolist()])
        if self.small:
            endless = np.full(len(slowest_s), np.inf)
            walked = self.walk.costs(Limits(slowest_s, slowest_s, endless)) + self.beside_s
            found = np.maximum(found, walked)
        return found

    def _divided_s(self, limit: float) -> float:
        """All flops on the fastest devices, each as much as it can."""
        case = self.case
        room = np.minimum(limit * case.speed * (1 + ROUNDING), self.held)
        before = np.cumsum(room[self.by_speed]) - room[self.by_speed]
        done = np.clip(case.flops.sum() - before, 0.0, room[self.by_speed])
        return float((done / case.speed[self.by_speed]).sum() + self._joining_s(room))

    def _joining_s(self, room: Floats) -> float:
        """Links between as many devices as there must be."""
        case = self.case
        work = _fewest(room, float(case.flops.sum()))
        memory = _fewest(case.budget_bytes, float(case.memory_bytes.sum()))
        links = max(work, memory, 1) - self.parts
        return float(self.link_s[: max(links, 0)].sum())


def heaviest_path(case: Case) -> list[int]:
    """Operators of the path with the most flops, from input to output; ties: with the most operators."""
    best = [(0.0, 0)] * case.operators
    came = [-1] * case.operators
    for operator in case.order:
        for maker in case.parents[operator]:
            if best[maker] > best[operator] or came[operator] < 0:
                best[operator], came[operator] = best[maker], maker
        best[operator] = best[operator][0] + float(case.flops[operator]), best[operator][1] + 1
    at = max(range(case.operators), key=lambda operator: best[operator])
    path = [at]
    while came[path[-1]] >= 0:
        path.append(came[path[-1]])
    return path[::-1]


def _line(case: Case, path: list[int]) -> Line:
    count = len(path)
    sent = np.concatenate([[0.0], case.output_bytes[path[:-1]], [0.0]])
    return Line(
        order=np.array(path),
        at=np.arange(count + 1),
        flops=np.concatenate([[0.0], np.cumsum(case.flops[path])]),
        memory_bytes=np.concatenate([[0.0], np.cumsum(case.memory_bytes[path])]) * (1 - ROUNDING),
        crossing_bytes=sent,
        crossing=np.concatenate([[0.0], np.ones(count - 1), [0.0]]),
    )


def _flops_held(case: Case) -> Floats:
    """[device]: the most flops of operators, divided at will, that its memory holds."""
    with np.errstate(divide="ignore", invalid="ignore"):
        density = np.where(case.memory_bytes > 0, case.flops / case.memory_bytes, np.inf)
    order = np.argsort(-density, kind="stable")
    memory = np.concatenate([[0.0], np.cumsum(case.memory_bytes[order])])
    flops = np.concatenate([[0.0], np.cumsum(case.flops[order])])
    distinct = np.append(np.diff(memory) > 0, True)  # of operators that need no memory, the last counts
    held: Floats = np.interp(case.budget_bytes, memory[distinct], flops[distinct]) * (1 + ROUNDING)
    return held


def _fewest(room: Floats, total: float) -> int:
    """How many of the roomiest it takes."""
    full = np.cumsum(np.sort(room)[::-1])
    return int(np.searchsorted(full, total * (1 - ROUNDING))) + 1 if total > 0 else 1


def _quickest(case: Case, weight: float) -> Floats:
    """[link] ascending: seconds of the smallest output over it."""
    read = [float(case.output_bytes[maker]) for maker in range(case.operators) if case.users[maker]]
    off = ~np.eye(case.devices, dtype=bool)
    found: Floats = np.sort(case.alpha[off] + case.beta[off] * (weight * min(read, default=0.0)))
    return found
