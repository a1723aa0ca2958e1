"""Contiguous segments on given groups of devices, in the best order of the groups.

Strategy pp consists of this; others fall back to it where memory allows no contiguous placement of their own.
"""

from collections.abc import Iterator
from itertools import permutations

import numpy as np

from fleetune.arrays import Floats
from fleetune.contracts.plan import Plan
from fleetune.errors import Infeasible
from fleetune.planning.plan_result import segment, single_lane_plan
from fleetune.planning.segment_costs import Group, GroupCosts, SegmentCosts, Shortfall
from fleetune.planning.strategy import Problem, memory_shortage, sample_shortage
from fleetune.solving.hpp.chain_cuts import best_cuts
from fleetune.solving.hpp.problem import warmups

ALL_ORDERS_UP_TO = 6
"""Number of groups up to which all orders are tried."""


class ChainPlanner:
    """Searches the orders and cuts of the groups of one problem."""

    def __init__(
        self,
        strategy: str,
        problem: Problem,
        groups: tuple[Group, ...],
        warmup: str | tuple[int, ...],
        edges: list[int] | None = None,
    ) -> None:
        """edges: where cuts may be, from `layer_edges`; None: wherever the model can be cut."""
        self.strategy, self.problem, self.groups = strategy, problem, groups
        self.costs = SegmentCosts(problem, edges)
        self.runs = GroupCosts(self.costs)
        self._crossings: dict[tuple[Group, Group], Floats] = {}
        self.warmups = warmups(warmup, len(groups), problem.micro_batches)
        self.kept = [min(k, problem.micro_batches) for k in self.warmups]
        if len(groups) > self.costs.blocks:
            raise Infeasible(
                f"the pipeline has {len(groups)} segments, but the model can be cut into {self.costs.blocks} pieces "
                "at most; name fewer devices or form fewer groups"
            )

    def best(self, keep_order: bool) -> Plan:
        """The candidate with the shortest round by the clock, tried in order of lower bounds; ties go to the first.

        Infeasible, naming a device and its missing bytes, where no candidate fits.
        """
        orders = list(self._orders(keep_order))
        candidates = [(self._lower_bound_s(order, cut), order, cut) for order in orders for cut in self._cuts(order)]
        best: tuple[float, Plan] | None = None
        for bound_s, order, edges in sorted(candidates, key=lambda candidate: candidate[0]):
            if best is not None and bound_s >= best[0]:
                break
            plan = self._plan(order, edges)
            round_s = self.costs.clock.round_s(plan)
            best = (round_s, plan) if best is None or round_s < best[0] else best
        if best is None:
            raise self._infeasible(orders)
        return best[1]

    def _orders(self, keep_order: bool) -> Iterator[tuple[Group, ...]]:
        if keep_order:
            yield self.groups
        elif len(self.groups) <= ALL_ORDERS_UP_TO:
            yield from permutations(self.groups)
        else:
            fastest = tuple(sorted(self.groups, key=self._whole_model_s))
            roomiest = tuple(sorted(self.groups, key=lambda g: -min(self._memory_bytes(d) for d in g)))
            yield from dict.fromkeys((fastest, fastest[::-1], roomiest, self.groups))

    def _cuts(self, order: tuple[Group, ...]) -> Iterator[list[int]]:
        """Cuts balanced by work alone, then by work and traffic; each at most once."""
        work = [self.runs.seconds(group, kept) for group, kept in zip(order, self.kept, strict=True)]
        pairs = list(zip(order, order[1:], strict=False))
        free = best_cuts(len(work), work.__getitem__)
        if free is not None:
            yield free
            counted = best_cuts(len(work), work.__getitem__, lambda p: self._crossing(*pairs[p]))
            if counted is not None and counted != free:
                yield counted

    def _crossing(self, low: Group, high: Group) -> Floats:
        """[edge]: seconds per micro-batch of a cut's slower direction, divided over the smaller group's ports.

        A guess that only proposes cuts; the clock decides between the candidates.
        """
        if (low, high) in self._crossings:
            return self._crossings[low, high]
        fleet, units = self.problem.fleet, self.problem.profile.units
        there = min(fleet.link(a, b).bytes_per_s for a in low for b in high)
        back = min(fleet.link(b, a).bytes_per_s for a in low for b in high)
        samples = self.problem.micro_batch_samples / min(len(low), len(high))
        cut = [units[edge - 1] for edge in self.costs.edges[1:]]
        each = [max(u.output_bytes / there, u.gradient_bytes / back) * samples for u in cut]
        self._crossings[low, high] = np.array([0.0, *each])
        return self._crossings[low, high]

    def _lower_bound_s(self, order: tuple[Group, ...], edges: list[int]) -> float:
        """Lower bound of the round: a segment's own work, plus one forward and backward through the single-device
        segments before it; a nanosecond per task is subtracted, since the clock rounds."""
        longest, before = 0.0, 0.0
        for p, group in enumerate(order):
            work_s = float(self.runs.seconds(group, self.kept[p])[edges[p], edges[p + 1]])
            longest = max(longest, before + self.problem.micro_batches * work_s)
            before += work_s if len(group) == 1 else 0.0
        return longest - 1e-9 * (self.problem.micro_batches + len(order))

    def _plan(self, order: tuple[Group, ...], edges: list[int]) -> Plan:
        segments = []
        for p, group in enumerate(order):
            shares = self.runs.shares(group, self.kept[p], edges[p], edges[p + 1])
            assert shares is not None, "cuts only take runs that fit"
            units = self.costs.units(edges[p], edges[p + 1])
            segments.append(segment(units, list(zip(group, shares, strict=True)), self.warmups[p]))
        return single_lane_plan(self.strategy, self.problem, segments)

    def _infeasible(self, orders: list[tuple[Group, ...]]) -> Infeasible:
        """The error for a device too small for every block, or else for the worst one of the nearest candidate."""
        blocks = [(k, k + 1) for k in range(self.costs.blocks)]
        for group in self.groups:
            each = (self.runs.worst_shortfall(group, min(self.kept), block) for block in blocks)
            cheapest = min(each, key=lambda shortfall: shortfall.missing_bytes)
            if cheapest.missing_bytes > 0:
                return self._shortage(cheapest)
        return self._shortage(min(self._worst_shortfall(order) for order in orders))

    def _worst_shortfall(self, order: tuple[Group, ...]) -> Shortfall:
        """The worst shortfall of this order, at the cuts that minimise it."""
        needs = [self.runs.missing(group, kept) for group, kept in zip(order, self.kept, strict=True)]
        edges = best_cuts(len(needs), needs.__getitem__)
        if edges is None:  # some group has too few samples wherever it stands
            edges = np.linspace(0, self.costs.blocks, len(order) + 1).astype(int).tolist()
        runs = list(zip(edges, edges[1:], strict=False))
        p = max(range(len(order)), key=lambda p: needs[p][runs[p]])
        return self.runs.worst_shortfall(order[p], self.kept[p], runs[p])

    def _shortage(self, short: Shortfall) -> Infeasible:
        if short.missing_bytes == np.inf:
            (group,) = (group for group in self.groups if short.device in group)
            return sample_shortage(self.problem, group, short.samples)
        return memory_shortage(
            short.device, short.missing_bytes, self.costs.units(*short.run), short.samples, short.kept
        )

    def _whole_model_s(self, group: Group) -> float:
        """Seconds of the whole model on a group, with fluid shares."""
        batch = self.problem.micro_batch_samples
        return 1 / sum(1 / max(float(self.costs.running_seconds(d, batch)[-1]), 1e-12) for d in group)

    def _memory_bytes(self, device: str) -> int:
        return self.problem.fleet.device(device).memory_bytes
