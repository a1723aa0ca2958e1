"""Asteroid's Algorithms 1 and 2, recursive and slow, from the paper's text; shares no code with the planner.

Where the paper leaves something open the planner's own rules hold: whole samples come from rounding running totals, a
device dealt nothing takes one sample from the largest share, blocks of samples are 1 (for micro-batches below 128).
"""

import math
from functools import cache

from fleetune.solving.hpp.problem import Problem
from tests.support.solving.hpp.reference import crossing, latency_s, peak_bytes, task_s, trainable

Layers = tuple[int, int]
Group = tuple[int, ...]


def work_s(problem: Problem, device: int, samples: int, layers: Layers) -> float:
    """Forward and backward."""
    return task_s(problem, problem.forward_s, device, samples, layers) + task_s(
        problem, problem.backward_s, device, samples, layers
    )


def room(problem: Problem, device: int, layers: Layers, warmup: int) -> int:
    """Samples that fit the device's memory, a micro-batch at most."""
    budget = problem.devices[device].memory_bytes
    sizes = range(problem.micro_batch + 1)
    return max((y for y in sizes if peak_bytes(problem, layers, warmup, y) <= budget), default=0)


def allocate(problem: Problem, group: Group, layers: Layers, warmup: int) -> list[int] | None:
    """Algorithm 1; None: fail."""
    batch = problem.micro_batch
    rooms = [room(problem, d, layers, warmup) for d in group]
    if len(group) > batch or min(rooms) < 1:
        return None
    shares = [0] * len(group)
    if not _balance(batch, [1 / work_s(problem, d, batch, layers) for d in group], rooms, shares):
        return None
    while 0 in shares:
        shares[shares.index(max(shares))] -= 1
        shares[shares.index(0)] = 1
    _offload(problem, group, layers, rooms, shares)
    return shares


def _balance(left: int, speeds: list[float], rooms: list[int], shares: list[int]) -> bool:
    """Phase 1: MemoryAwareBalancing."""
    if left == 0:
        return True
    open_ = [k for k in range(len(shares)) if shares[k] < rooms[k]]
    if not open_:
        return False
    total = sum(speeds[k] for k in open_)
    marks = [round(sum(speeds[k] for k in open_[: n + 1]) / total * left) for n in range(len(open_))]
    for k, mark, before in zip(open_, marks, [0, *marks], strict=False):
        given = min(mark - before, rooms[k] - shares[k])
        shares[k], left = shares[k] + given, left - given
    return _balance(left, speeds, rooms, shares)


def _offload(problem: Problem, group: Group, layers: Layers, rooms: list[int], shares: list[int]) -> None:
    """Phase 2: StragglerWorkloadOffloading."""
    while True:
        times = [work_s(problem, d, y, layers) for d, y in zip(group, shares, strict=True)]
        slow = times.index(max(times))
        takers = [k for k in range(len(group)) if k != slow and shares[k] < rooms[k]]
        if shares[slow] == 1 or not takers:
            return
        fast = min(takers, key=lambda k: times[k])
        trial = list(shares)
        trial[slow], trial[fast] = trial[slow] - 1, trial[fast] + 1
        if max(work_s(problem, d, y, layers) for d, y in zip(group, trial, strict=True)) >= max(times):
            return
        shares[:] = trial


Steps = tuple[tuple[float, float, float], ...]
"""(E_f, E_b, T_a) of each."""


class Planner:
    """Algorithm 2 over the devices in descending order of memory."""

    def __init__(self, problem: Problem, kept: list[int]) -> None:
        """`kept`: K of the last stage, of the last but one, ..."""
        self.problem, self.kept = problem, kept
        self.layers, self.devices = len(problem.layers), len(problem.devices)
        self.order = sorted(range(self.devices), key=lambda d: -problem.devices[d].memory_bytes)
        self.best = cache(self._best)

    def latency_s(self, stages: int) -> float:
        """Q(L, N, stages): eq. (4) of the best plan; infinite where there is none."""
        steps, _ = self.best(0, 0, stages)
        return self.total_s(steps) if steps else math.inf

    def _best(self, layer: int, x: int, stages: int) -> tuple[Steps, int]:
        """Steps of the best way for the layers from `layer` on the devices from place x, and the place where the group
        of its first stage ends; no steps where there is no way. Eq. (10)."""
        if stages == 1:
            return self._step((layer, self.layers), (x, self.devices), 1), self.devices
        found: list[tuple[Steps, int]] = []
        for y in range(x + 1, self.devices):
            for cut in range(layer + 1, self.layers):
                behind, z = self.best(cut, y, stages - 1)
                head = self._step((layer, cut), (x, y), stages)
                if behind and head:
                    found.append(((*head, self._crossing(cut, x, y, z), *behind), y))
        return min(found, key=lambda way: self.total_s(way[0]), default=((), x))

    def _step(self, layers: Layers, places: tuple[int, int], stages: int) -> Steps:
        """Eq. (8) and (5) after Algorithm 1."""
        problem, group = self.problem, tuple(self.order[places[0] : places[1]])
        shares = allocate(problem, group, layers, self.kept[stages - 1])
        if shares is None:
            return ()
        there, back = (
            max(task_s(problem, rows, d, y, layers) for d, y in zip(group, shares, strict=True))
            for rows in (problem.forward_s, problem.backward_s)
        )
        speeds = [problem.bandwidth_bytes_per_s[a][b] for a in group for b in group if a != b]
        g = len(group)
        return ((there, back, 2 * (g - 1) * trainable(problem, layers) / (g * min(speeds)) if speeds else 0.0),)

    def _crossing(self, cut: int, x: int, y: int, z: int) -> tuple[float, float, float]:
        """The communication step between the groups at places [x, y) and [y, z)."""
        problem, ways = self.problem, []
        low, high = self.order[x:y], self.order[y:z]
        for size, senders, receivers in zip(crossing(problem, cut), (low, high), (high, low), strict=True):
            pairs = [(a, b) for a in senders for b in receivers]
            slowest = min(problem.bandwidth_bytes_per_s[a][b] for a, b in pairs)
            ways.append(problem.micro_batch * size / slowest + max(problem.latency_s[a][b] for a, b in pairs))
        return ways[0], ways[1], 0.0

    def total_s(self, steps: Steps) -> float:
        """Eq. (4)-(6)."""
        return latency_s(self.problem.micro_batches, steps)
