"""pp: pipeline parallelism; the model is cut into contiguous segments whose measured times are balanced.

After Huang et al., GPipe: Efficient Training of Giant Neural Networks using Pipeline Parallelism, NeurIPS 2019
(arXiv:1811.06965): cut so that no part is slower than need be. Deviations: times are measured on each device instead
of one number per layer, since devices are uneven; memory is respected; each order of devices (all of them up to six,
a few sorted ones beyond) is cut twice, with and without counting what crosses, and the clock chooses among all
candidates; the schedule is one-forward-one-backward (PipeDream, SOSP 2019) with Asteroid's warm-ups. A part may be a
group of devices that share its samples, as in Asteroid's hybrid pipelines; the groups are given, not searched.
"""

from collections.abc import Iterator
from itertools import permutations

import numpy as np

from fleetune.contracts import wire
from fleetune.contracts.plan import Plan, PlanResult
from fleetune.contracts.record import distinct, one_of, record
from fleetune.errors import Infeasible, Refused
from fleetune.planning.parts.costs import Costs, Matrix
from fleetune.planning.parts.devices import enough_samples, not_profiled, taking_part
from fleetune.planning.parts.finish import answer, plan_of, segment
from fleetune.planning.parts.groups import Group, Groups
from fleetune.planning.parts.shortage import lacking
from fleetune.planning.problem import Problem
from fleetune.solving.hpp.cuts import best_cuts
from fleetune.solving.hpp.warmup import warmups

ALL_ORDERS_UP_TO = 6
"""Groups; beyond that, n! orders are too many to cut."""


@record
class Options:
    """Of `pp`."""

    devices: tuple[str, ...] = ()
    """Which ones, each a segment of its own; all of the fleet where none are named."""
    groups: tuple[tuple[str, ...], ...] = ()
    """Instead of devices: a segment per group, samples shared inside it; `[[a], [b, c]]`."""
    order: str = "auto"
    """`given` keeps the order of devices or groups, `best` tries others, `auto` is given for groups, else best."""
    warmup: str | tuple[int, ...] = "2(P-p)-1"
    """A policy of `solving.hpp.warmup`, or K of every segment, first to last."""

    def __post_init__(self) -> None:
        one_of("pp", "order", self.order, ("auto", "given", "best"))
        if self.devices and self.groups:
            raise Refused("pp: devices and groups are both given; name devices or deal them into groups, not both")
        distinct("pp", "device", (name for group in self.groups for name in group))
        if not all(self.groups):
            raise Refused("pp: groups has an empty group; every segment needs a device")


class PipelineParallel:
    """Contiguous segments balanced by measured time."""

    name = "pp"
    summary = "contiguous segments balanced by measured time, one device (or option groups) each"
    citation = (
        "Huang, Y. et al.: GPipe: Efficient Training of Giant Neural Networks using Pipeline Parallelism. "
        "NeurIPS 2019. arXiv:1811.06965"
    )

    def supports(self, problem: Problem) -> str:
        """Any profiled fleet."""
        return not_profiled(problem)

    def plan(self, problem: Problem) -> PlanResult:
        """The candidate with the shortest round by the clock; at equal rounds the first in order of candidates."""
        options = wire.load(Options, problem.options, "strategy pp")
        asked = [name for group in options.groups for name in group] or options.devices
        names = taking_part(problem, asked)
        groups = options.groups or tuple((name,) for name in names)
        for group in groups:
            enough_samples(problem, group)
        search = _Search(self.name, problem, groups, options.warmup)
        keep_order = options.order == "given" or (options.order == "auto" and bool(options.groups))
        best = search.best(keep_order)
        return answer(best, problem, search.costs.clock, self.citation)


class _Search:
    """Candidates of one problem."""

    def __init__(
        self, strategy: str, problem: Problem, groups: tuple[Group, ...], warmup: str | tuple[int, ...]
    ) -> None:
        self.strategy, self.problem, self.groups = strategy, problem, groups
        self.costs = Costs(problem)
        self.runs = Groups(self.costs)
        self._crossings: dict[tuple[Group, Group], Matrix] = {}
        self.warmups = warmups(warmup, len(groups), problem.micro_batches)
        self.kept = [min(k, problem.micro_batches) for k in self.warmups]
        if len(groups) > self.costs.blocks:
            raise Infeasible(
                f"the pipeline has {len(groups)} segments, but the model can be cut into {self.costs.blocks} pieces "
                "at most; name fewer devices or deal them into fewer groups"
            )

    def best(self, keep_order: bool) -> Plan:
        """The best candidate by the clock, those that promise most first; at equal rounds the first."""
        orders = list(self._orders(keep_order))
        candidates = [(self._at_least_s(order, cut), order, cut) for order in orders for cut in self._cuts(order)]
        best: tuple[float, Plan] | None = None
        for at_least_s, order, edges in sorted(candidates, key=lambda candidate: candidate[0]):
            if best is not None and at_least_s >= best[0]:
                break
            plan = self._plan(order, edges)
            round_s = self.costs.clock.round_s(plan)
            best = (round_s, plan) if best is None or round_s < best[0] else best
        if best is None:
            raise self._shortage(orders)
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
        """Balanced by work alone, then by work and what crosses; each at most once."""
        work = [self.runs.seconds(group, kept) for group, kept in zip(order, self.kept, strict=True)]
        pairs = list(zip(order, order[1:], strict=False))
        free = best_cuts(len(work), work.__getitem__)
        if free is not None:
            yield free
            counted = best_cuts(len(work), work.__getitem__, lambda p: self._crossing(*pairs[p]))
            if counted is not None and counted != free:
                yield counted

    def _crossing(self, low: Group, high: Group) -> Matrix:
        """[edge]: seconds of the slower direction of a cut there, with as many ports busy as the smaller group has."""
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

    def _at_least_s(self, order: tuple[Group, ...], edges: list[int]) -> float:
        """No round is shorter: a segment's own work, after the first forward came and before the last backward went
        through the single devices before it; a nanosecond per task is taken off, since the clock rounds."""
        longest, before = 0.0, 0.0
        for p, group in enumerate(order):
            work_s = float(self.runs.seconds(group, self.kept[p])[edges[p], edges[p + 1]])
            longest = max(longest, before + self.problem.micro_batches * work_s)
            before += work_s if len(group) == 1 else 0.0
        return longest - 1e-9 * (self.problem.micro_batches + len(order))

    def _plan(self, order: tuple[Group, ...], edges: list[int]) -> Plan:
        segments = []
        for p, group in enumerate(order):
            dealt = self.runs.dealt(group, self.kept[p], edges[p], edges[p + 1])
            assert dealt is not None, "cuts only take runs that fit"
            units = self.costs.units(edges[p], edges[p + 1])
            segments.append(segment(units, list(zip(group, dealt, strict=True)), self.warmups[p]))
        return plan_of(self.strategy, self.problem, segments)

    def _shortage(self, orders: list[tuple[Group, ...]]) -> Infeasible:
        """Who lacks how much: a device too small for every block, else whoever the least short arrangement lacks."""
        for group in self.groups:
            kept = min(self.kept)
            blocks = [(k, k + 1) for k in range(self.costs.blocks)]
            run = min(blocks, key=lambda run: self.runs.neediest(group, kept, *run)[2])
            device, samples, missing = self.runs.neediest(group, kept, *run)
            if missing > 0:
                return lacking(device, missing, self.costs.units(*run), samples, kept)
        missing, device, samples, run, kept = min(self._neediest(order) for order in orders)
        return lacking(device, missing, self.costs.units(*run), samples, kept)

    def _neediest(self, order: tuple[Group, ...]) -> tuple[float, str, int, tuple[int, int], int]:
        """(missing bytes, device, samples, run, kept) where this order, cut to lack as little as can be, lacks most."""
        needs = [self.runs.missing(group, kept) for group, kept in zip(order, self.kept, strict=True)]
        edges = best_cuts(len(needs), needs.__getitem__)
        assert edges is not None, "there are enough pieces"
        runs = list(zip(edges, edges[1:], strict=False))
        p = max(range(len(order)), key=lambda p: needs[p][runs[p]])
        device, samples, missing = self.runs.neediest(order[p], self.kept[p], *runs[p])
        return missing, device, samples, runs[p], self.kept[p]

    def _whole_model_s(self, group: Group) -> float:
        """Seconds of a sample of the whole model, the group's devices sharing as if work were fluid."""
        batch = self.problem.micro_batch_samples
        return 1 / sum(1 / max(float(self.costs.running_seconds(d, batch)[-1]), 1e-12) for d in group)

    def _memory_bytes(self, device: str) -> int:
        return self.problem.fleet.device(device).memory_bytes
