"""A time that no placement that fits the memories can beat.

Let T be the most that a device computes or receives: eq. (3) is a sum S plus (n - 1) T. Two relaxations bound S for a
given T from below, and both fall as T grows, so that the best over all T is bracketed on a grid that is refined where
it is lowest. (1) A path of the graph, alone: devices may come again, all other operators run on the fastest device
for nothing but their compute; every transfer sends the least that any ratio of AdaTopK leaves of it. (2) All flops,
divided at will: the fastest devices first, each up to T and to what its memory holds at best; as many devices as that
takes at least are joined by as many of the quickest transfers.
"""

import numpy as np

from fleetune.solving.deadline import NO_DEADLINE, Deadline
from fleetune.solving.opfence.graph import components
from fleetune.solving.opfence.instance import Instance
from fleetune.solving.opfence.linear_order import LinearOrder
from fleetune.solving.opfence.path_dp import Limits, PathProgram
from fleetune.solving.validation import Floats

GRID = 12
ROUNDS = 3
ROUNDING = 1e-9
"""Relative; what sums of many numbers may be off by."""
MAX_WORK = 40_000_000
"""Steps of the walk times pairs of devices times grid, beyond which the path is left out."""


def lower_bound_s(instance: Instance, known_s: float, deadline: Deadline = NO_DEADLINE) -> float:
    """Seconds; known_s: what some placement takes, above which nothing need be looked at.

    deadline: once it is over, the path is left out, which takes most of the time.
    """
    relaxed = _Relaxed(instance, deadline)
    least = relaxed.least_slowest_s()
    rounds = instance.rounds - 1
    grid = np.unique(np.append(np.linspace(least, max(known_s / instance.rounds, least), GRID), least))
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
    def __init__(self, instance: Instance, deadline: Deadline) -> None:
        self.instance = instance
        self.weight = instance.codec.least_share
        path = heaviest_path(instance)
        self.path = _line(instance, path)
        self.beside_s = (instance.flops.sum() - instance.flops[path].sum()) / instance.speed.max()
        self.walk = PathProgram(instance, self.path, simple=False, weight=self.weight, deadline=deadline)
        self.small = len(path) * instance.devices**2 * GRID <= MAX_WORK
        self.by_speed = np.argsort(-instance.speed, kind="stable")
        self.held = _flops_held(instance)
        self.link_s = _quickest(instance, self.weight)
        self.parts = len(components(range(instance.operators), instance.parents))
        """Weakly connected parts of the graph; that many devices need no link."""

    def least_slowest_s(self) -> float:
        """No T is smaller: all devices together must do all flops, and one of them the largest operator."""
        total = self.instance.flops.sum()
        alone = self.instance.flops.max() / self.instance.speed.max()
        low, high = max(total / self.instance.speed.sum(), alone), max(total / self.instance.speed.min(), alone)
        for _ in range(60):
            middle = (low + high) / 2
            enough = np.minimum(middle * self.instance.speed, self.held).sum() >= total * (1 - ROUNDING)
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
        instance = self.instance
        room = np.minimum(limit * instance.speed * (1 + ROUNDING), self.held)
        before = np.cumsum(room[self.by_speed]) - room[self.by_speed]
        done = np.clip(instance.flops.sum() - before, 0.0, room[self.by_speed])
        return float((done / instance.speed[self.by_speed]).sum() + self._joining_s(room))

    def _joining_s(self, room: Floats) -> float:
        """Links between as many devices as there must be."""
        instance = self.instance
        work = _fewest(room, float(instance.flops.sum()))
        memory = _fewest(instance.budget_bytes, float(instance.memory_bytes.sum()))
        links = max(work, memory, 1) - self.parts
        return float(self.link_s[: max(links, 0)].sum())


def heaviest_path(instance: Instance) -> list[int]:
    """Operators of the path with the most flops, from input to output; ties: with the most operators."""
    best = [(0.0, 0)] * instance.operators
    came = [-1] * instance.operators
    for operator in instance.order:
        for maker in instance.parents[operator]:
            if best[maker] > best[operator] or came[operator] < 0:
                best[operator], came[operator] = best[maker], maker
        best[operator] = best[operator][0] + float(instance.flops[operator]), best[operator][1] + 1
    at = max(range(instance.operators), key=lambda operator: best[operator])
    path = [at]
    while came[path[-1]] >= 0:
        path.append(came[path[-1]])
    return path[::-1]


def _line(instance: Instance, path: list[int]) -> LinearOrder:
    count = len(path)
    sent = np.concatenate([[0.0], instance.output_bytes[path[:-1]], [0.0]])
    return LinearOrder(
        order=np.array(path),
        at=np.arange(count + 1),
        flops=np.concatenate([[0.0], np.cumsum(instance.flops[path])]),
        memory_bytes=np.concatenate([[0.0], np.cumsum(instance.memory_bytes[path])]) * (1 - ROUNDING),
        crossing_bytes=sent,
        crossing=np.concatenate([[0.0], np.ones(count - 1), [0.0]]),
    )


def _flops_held(instance: Instance) -> Floats:
    """[device]: the most flops of operators, divided at will, that its memory holds."""
    with np.errstate(divide="ignore", invalid="ignore"):
        density = np.where(instance.memory_bytes > 0, instance.flops / instance.memory_bytes, np.inf)
    order = np.argsort(-density, kind="stable")
    memory = np.concatenate([[0.0], np.cumsum(instance.memory_bytes[order])])
    flops = np.concatenate([[0.0], np.cumsum(instance.flops[order])])
    distinct = np.append(np.diff(memory) > 0, True)  # of operators that need no memory, the last counts
    held: Floats = np.interp(instance.budget_bytes, memory[distinct], flops[distinct]) * (1 + ROUNDING)
    return held


def _fewest(room: Floats, total: float) -> int:
    """How many of the roomiest it takes."""
    full = np.cumsum(np.sort(room)[::-1])
    return int(np.searchsorted(full, total * (1 - ROUNDING))) + 1 if total > 0 else 1


def _quickest(instance: Instance, weight: float) -> Floats:
    """[link] ascending: seconds of the smallest output over it."""
    read = [float(instance.output_bytes[maker]) for maker in range(instance.operators) if instance.users[maker]]
    off = ~np.eye(instance.devices, dtype=bool)
    found: Floats = np.sort(instance.alpha[off] + instance.beta[off] * (weight * min(read, default=0.0)))
    return found
