"""Lower bound on the time of every placement that fits the memories.

Let T be the largest compute or receive time of a device: eq. (3) is a sum S plus (n - 1) T. Two relaxations bound S
from below for a given T, and both fall as T grows; so the minimum over T is bracketed on a grid that is refined where
it is lowest. (1) One path of the graph: devices may repeat, all other operators run on the fastest device and cost
their compute only, and every transfer sends the least that any AdaTopK ratio leaves of it. (2) All flops, divided
arbitrarily: the fastest devices first, each up to T and up to what its memory can hold; the least number of devices
that takes is joined by as many of the quickest transfers.
"""

import numpy as np

from fleetune.arrays import Floats
from fleetune.solving.limits import NO_DEADLINE, Deadline
from fleetune.solving.opfence.graph import components
from fleetune.solving.opfence.instance import Instance, LinearOrder, prefix_sums
from fleetune.solving.opfence.path_dp import PathProgram, TrialLimits

GRID_POINTS = 12
REFINEMENTS = 3
ROUNDING = 1e-9
"""Relative rounding error of sums of many numbers."""
MAX_WORK = 40_000_000
"""Limit of path length times device pairs times grid; above it, relaxation (1) is skipped."""


def lower_bound_s(instance: Instance, known_s: float, deadline: Deadline = NO_DEADLINE) -> float:
    """Return the bound in seconds; known_s: the time of some placement, an upper limit of the bound.

    deadline: relaxation (1), which takes most of the time, is skipped once it expires.
    """
    relaxation = _Relaxation(instance, deadline)
    least = relaxation.least_slowest_s()
    repeats = instance.micro_batches - 1
    grid = np.unique(np.append(np.linspace(least, max(known_s / instance.micro_batches, least), GRID_POINTS), least))
    sums = relaxation.sums(grid)
    for _ in range(REFINEMENTS):
        lows = _lows(grid, sums, repeats)
        at = int(np.argmin(lows))
        if at + 1 == len(grid) or repeats == 0:
            break
        finer = np.linspace(grid[at], grid[at + 1], GRID_POINTS)[1:-1]
        merged = np.concatenate([grid, finer])
        order = np.argsort(merged, kind="stable")
        grid, sums = merged[order], np.concatenate([sums, relaxation.sums(finer)])[order]
    bound = float(_lows(grid, sums, repeats).min())
    return max(0.0, min(bound * (1 - ROUNDING), known_s))


def _lows(grid: Floats, sums: Floats, repeats: int) -> Floats:
    """Return the least value of eq. (3) for T between each grid value and the next."""
    at_most = np.append(sums[1:], sums[-1])
    found: Floats = at_most + repeats * grid
    return found


class _Relaxation:
    def __init__(self, instance: Instance, deadline: Deadline) -> None:
        self.instance = instance
        self.byte_weight = instance.codec.min_wire_share
        path = heaviest_path(instance)
        self.path = _path_order(instance, path)
        self.beside_s = (instance.flops.sum() - instance.flops[path].sum()) / instance.speed.max()
        self.program = PathProgram(instance, self.path, simple=False, byte_weight=self.byte_weight, deadline=deadline)
        self.small = len(path) * instance.devices**2 * GRID_POINTS <= MAX_WORK
        self.by_speed = np.argsort(-instance.speed, kind="stable")
        self.max_flops = _max_flops(instance)
        self.link_s = _fastest_transfers_s(instance, self.byte_weight)
        self.parts = len(components(range(instance.operators), instance.parents))
        """Weakly connected components of the graph; that many devices need no link."""

    def least_slowest_s(self) -> float:
        """Return the least possible T: all devices share all flops, and one runs the largest operator."""
        total = self.instance.flops.sum()
        alone = self.instance.flops.max() / self.instance.speed.max()
        low, high = max(total / self.instance.speed.sum(), alone), max(total / self.instance.speed.min(), alone)
        for _ in range(60):
            middle = (low + high) / 2
            enough = np.minimum(middle * self.instance.speed, self.max_flops).sum() >= total * (1 - ROUNDING)
            low, high = (low, middle) if enough else (middle, high)
        return float(low)

    def sums(self, slowest_s: Floats) -> Floats:
        """Return [T] the least sum of compute and receive times."""
        found = np.array([self._divided_s(limit) for limit in slowest_s.tolist()])
        if self.small:
            unlimited = np.full(len(slowest_s), np.inf)
            path_costs = self.program.costs(TrialLimits(slowest_s, slowest_s, unlimited)) + self.beside_s
            found = np.maximum(found, path_costs)
        return found

    def _divided_s(self, limit: float) -> float:
        """Return the compute time of all flops on the fastest devices, plus the least time of links between them."""
        instance = self.instance
        room = np.minimum(limit * instance.speed * (1 + ROUNDING), self.max_flops)
        before = np.cumsum(room[self.by_speed]) - room[self.by_speed]
        done = np.clip(instance.flops.sum() - before, 0.0, room[self.by_speed])
        return float((done / instance.speed[self.by_speed]).sum() + self._joining_links_s(room))

    def _joining_links_s(self, room: Floats) -> float:
        """Return the time of the links between the least number of devices."""
        instance = self.instance
        work = _min_devices(room, float(instance.flops.sum()))
        memory = _min_devices(instance.budget_bytes, float(instance.memory_bytes.sum()))
        links = max(work, memory, 1) - self.parts
        return float(self.link_s[: max(links, 0)].sum())


def heaviest_path(instance: Instance) -> list[int]:
    """Return the path with the most flops, from input to output; ties: with the most operators."""
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


def _path_order(instance: Instance, path: list[int]) -> LinearOrder:
    count = len(path)
    sent = np.concatenate([[0.0], instance.output_bytes[path[:-1]], [0.0]])
    return LinearOrder(
        order=np.array(path),
        at=np.arange(count + 1),
        flops=prefix_sums(instance.flops[path]),
        memory_bytes=prefix_sums(instance.memory_bytes[path]) * (1 - ROUNDING),
        crossing_bytes=sent,
        crossing=np.concatenate([[0.0], np.ones(count - 1), [0.0]]),
    )


def _max_flops(instance: Instance) -> Floats:
    """Return [device] the most flops that fit its memory if operators can be divided."""
    with np.errstate(divide="ignore", invalid="ignore"):
        density = np.where(instance.memory_bytes > 0, instance.flops / instance.memory_bytes, np.inf)
    order = np.argsort(-density, kind="stable")
    memory = prefix_sums(instance.memory_bytes[order])
    flops = prefix_sums(instance.flops[order])
    distinct = np.append(np.diff(memory) > 0, True)  # operators without memory: keep the last
    max_flops: Floats = np.interp(instance.budget_bytes, memory[distinct], flops[distinct]) * (1 + ROUNDING)
    return max_flops


def _min_devices(room: Floats, total: float) -> int:
    """Return the least number of devices whose rooms add up to `total`."""
    full = np.cumsum(np.sort(room)[::-1])
    return int(np.searchsorted(full, total * (1 - ROUNDING))) + 1 if total > 0 else 1


def _fastest_transfers_s(instance: Instance, byte_weight: float) -> Floats:
    """Return [link] the seconds of the smallest output over it, ascending."""
    read = [float(instance.output_bytes[maker]) for maker in range(instance.operators) if instance.users[maker]]
    off = ~np.eye(instance.devices, dtype=bool)
    found: Floats = np.sort(instance.alpha[off] + instance.beta[off] * (byte_weight * min(read, default=0.0)))
    return found
