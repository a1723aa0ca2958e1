"""Cuts of a chain of given groups in a given order, in milliseconds: for a plan that must change while devices wait.

`chain_planner` computes the cost of every run of units on every group, which takes seconds for large models. Here only
those runs are looked at that a search of the shortest slowest segment asks for.
"""

from collections.abc import Iterator
from itertools import pairwise

import numpy as np

from fleetune.contracts.plan import Plan
from fleetune.errors import Infeasible
from fleetune.planning.chain_planner import ChainPlanner
from fleetune.planning.plan_result import segment, single_lane_plan
from fleetune.planning.segment_costs import Group, SegmentCosts
from fleetune.planning.strategy import free_bytes
from fleetune.solving.hpp.problem import warmups
from fleetune.solving.hpp.sample_allocation import allocate

SLACKS = (1e-9, 0.02, 0.05, 0.1)
"""The slowest segment may take so much longer than need be where less then crosses a cut; the clock decides."""
PRECISION = 1e-4
"""Of the least limit, relative."""


def recut(strategy: str, costs: SegmentCosts, groups: tuple[Group, ...], warmup: str | tuple[int, ...]) -> Plan:
    """Return the best of a few plans of these groups in this order, by the clock, for the problem of `costs`.

    Infeasible, naming a device and its missing bytes, where no cuts fit into the groups' memories.
    """
    problem = costs.problem
    search = _Recut(costs, groups, warmups(warmup, len(groups), problem.micro_batches))
    plans = [search.plan(strategy, edges) for edges in dict.fromkeys(search.candidates())]
    if not plans:
        return ChainPlanner(strategy, problem, groups, warmup).best(keep_order=True)  # says what is missing, and where
    return min(plans, key=costs.clock.round_s)


class _Recut:
    """Edges of one chain of groups."""

    def __init__(self, costs: SegmentCosts, groups: tuple[Group, ...], warmups: list[int]) -> None:
        self.costs, self.groups, self.warmups = costs, groups, warmups
        self.problem = problem = costs.problem
        self.free_bytes = {device: free_bytes(problem, device) for group in groups for device in group}
        self.activations: list[int] = costs.bytes.activation.tolist()
        self.batch = problem.micro_batch_samples
        self.kept = [min(k, problem.micro_batches) for k in warmups]
        units = problem.profile.units
        self.crossing = [0, *(units[e - 1].output_bytes + units[e - 1].gradient_bytes for e in self.costs.edges[1:])]

    def candidates(self) -> Iterator[tuple[int, ...]]:
        """Yield edges [0, e1, ..., n] of chains whose slowest segment takes about the least time possible."""
        if len(self.groups) > self.costs.blocks:
            raise Infeasible(
                f"{len(self.groups)} groups are left, but the model can be cut into {self.costs.blocks} pieces at most"
            )
        high = sum(max(float(self.costs.running(device)[:, -1].max()) for device in group) for group in self.groups)
        if self._reaches(high) is None:
            return
        low = 0.0
        while high - low > PRECISION * high:
            middle = (low + high) / 2
            low, high = (low, middle) if self._reaches(middle) is not None else (middle, high)
        for slack in SLACKS:
            latest = self._reaches(high * (1 + slack))
            if latest is not None:
                yield tuple(latest)
                yield tuple(self._least_crossing(latest, high * (1 + slack)))

    def plan(self, strategy: str, edges: tuple[int, ...]) -> Plan:
        """Return the plan of these edges."""
        segments = []
        for p, (first, end) in enumerate(pairwise(edges)):
            group = self.groups[p]
            times = [(t[:, end] - t[:, first]).tolist() for t in map(self.costs.running, group)]
            least = self.costs.least_samples(first, end)
            shares = [self.batch] if len(group) == 1 else allocate(times, self._rooms(p, first, end), self.batch, least)
            assert shares is not None, "these edges fit"
            units = self.costs.units(first, end)
            segments.append(segment(units, list(zip(group, shares, strict=True)), self.warmups[p]))
        return single_lane_plan(strategy, self.problem, segments)

    def _reaches(self, limit_s: float) -> list[int] | None:
        """Return the latest edges at which each group keeps the limit; None where there are none.

        Groups take as many units as they can, first to last, and leave one for each that follows; fewer where a later
        one could not compute its first unit in time. Where memory and time grow with units, this succeeds wherever any
        edges do.
        """
        return self._edges_from(0, 0, limit_s, set()) or None

    def _edges_from(self, p: int, first: int, limit_s: float, stuck: set[tuple[int, int]]) -> list[int] | None:
        """Return the latest edges of groups p, p + 1, ..., from block `first` on.

        Empty: blocks are left over, and would be from every earlier one on. None: a group is stuck, as it has not the
        time or the memory for one block where it begins; those of `stuck` are known to be.
        """
        count, blocks = len(self.groups), self.costs.blocks
        if p == count:
            return [first] if first == blocks else []
        if (p, first) in stuck:
            return None
        low, high = first, blocks - (count - 1 - p)
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if self._keeps(p, first, middle, limit_s) else (low, middle - 1)
        for end in range(low, first, -1):
            rest = self._edges_from(p + 1, end, limit_s, stuck)
            if rest is not None:
                return [first, *rest] if rest else []
        stuck.add((p, first))
        return None

    def _least_crossing(self, latest: list[int], limit_s: float) -> list[int]:
        """Return edges, from the last cut to the first, where least crosses and all groups still keep the limit."""
        edges = list(latest)
        for p in range(len(self.groups) - 1, 0, -1):
            allowed = [edges[p]]
            for edge in range(edges[p] - 1, edges[p - 1], -1):
                if not self._keeps(p, edge, edges[p + 1], limit_s):
                    break
                allowed.append(edge)
            edges[p] = min(allowed, key=lambda edge: (self.crossing[edge], -edge))
        return edges

    def _keeps(self, p: int, first: int, end: int, limit_s: float) -> bool:
        """Tell whether group p computes units [first, end) of a micro-batch in time, and has the memory."""
        group = self.groups[p]
        least = self.costs.least_samples(first, end)
        if len(group) * least > self.batch:
            return False
        total, rooms = 0, self._rooms(p, first, end)
        for device, room in zip(group, rooms, strict=True):
            running = self.costs.running(device)
            samples = slice(self.batch - 1, None) if len(group) == 1 else slice(None)
            in_time = np.flatnonzero(running[samples, end] - running[samples, first] <= limit_s)
            if not len(in_time):
                return False
            most = self.batch if len(group) == 1 else min(room, int(in_time[-1]) + 1)
            if room < most or most < least:
                return False
            total += most
        return total >= self.batch

    def _rooms(self, p: int, first: int, end: int) -> list[int]:
        """Return the most samples of a micro-batch that each device of group p has memory for."""
        state = int(self.costs.bytes.state(first, end, len(self.groups[p])))
        kept_bytes = self.kept[p] * (self.activations[end] - self.activations[first])
        rooms = []
        for device in self.groups[p]:
            room = self.free_bytes[device] - state
            rooms.append(0 if room < 0 else min(self.batch, room // kept_bytes if kept_bytes else self.batch))
        return rooms
