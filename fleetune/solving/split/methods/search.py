"""Methods `auto` and `exact`: a search that improves the best plan and the best bound of one problem.

Starts are the heuristics of J. Tirana et al. (INFOCOM 2024) and the rounded fractional assignment of the energetic
bound, so that no plan of those heuristics is better. Local search improves the best start; the Benders search raises
the bound and yields further starts; CP-SAT takes the whole problem if it is small. All share one `ScheduleCache`, so
that each helper's schedule is computed once. The search ends once the plan equals the bound.

auto: work grows with the problem within limits, so that the same problem and seed give the same plan; with a time limit
it continues until then. J. Tirana et al. choose between their ADMM and balanced-greedy by size.

exact: CP-SAT over assignment and both directions at once, until the plan is proven or work is done. It solves problem P
of J. Tirana et al. (eq. (1)-(11)), which their solver left with a gap of 40 % after 14 hours at 20 clients and 5
helpers. The gap is closed by the energetic bound, a logic-based Benders search with an exact branch and bound per
helper (`benders`, `single_machine`), and last the whole problem in CP-SAT (`cp_model`). The Benders search proves
preemptive plans at any horizon; if interruptions cost something and a task is worth interrupting twice, only the CP-SAT
model does, which is used while the horizon is short. `lower_bound` is the bound that was proven.
"""

from __future__ import annotations

import numpy as np

from fleetune.arrays import Floats
from fleetune.solving.limits import Deadline
from fleetune.solving.split.assignment import SolverLimit
from fleetune.solving.split.benders import BendersMaster
from fleetune.solving.split.bounds import branch_and_cut_bound, energetic_bound, volume_bound
from fleetune.solving.split.cp_model import improve_plan
from fleetune.solving.split.energetic import EnergeticBound
from fleetune.solving.split.instance import Instance
from fleetune.solving.split.local_search import LargeNeighbourhoodSearch, TabuSearch
from fleetune.solving.split.methods.baselines import balanced_greedy, random_fcfs
from fleetune.solving.split.schedule import Candidate, Gap, SearchOptions, TaskRow, completion
from fleetune.solving.split.schedule_cache import ScheduleCache, clients_of, helper_of, masks_of
from fleetune.solving.split.single_machine import MachineSchedule, SingleMachine

MAX_PAIRS = 20_000
"""Helper-client pairs up to which linear programs and the Benders master pay off."""
MAX_BRANCHED = 3_000
"""Helper-client pairs up to which branch and cut pays off."""
WIDE_GAP = 0.02
"""Relative gap above which a plan deserves more work."""
MAX_UNDECIDED = 6
"""Horizons per call that may remain undecided."""
UNSPLIT_NODES = 500
BOUND_SHARE = 0.4
"""Largest share of a time limit for the first bound."""
MODEL_S = 2.5e-4
"""Approximate seconds per pair to build the CP-SAT model, which no deadline interrupts."""


class Search:
    """State of a search: `masks` holds the clients of each helper in the best plan, `value` its makespan."""

    def __init__(self, instance: Instance, options: SearchOptions) -> None:
        self.instance, self.seed = instance, options.seed
        self.deadline = Deadline(options.time_limit_s)
        self.cache, self.energetic = ScheduleCache(instance), EnergeticBound(instance)
        self.master = BendersMaster(self.energetic, self.cache, options.seed)
        self.masks, self.value = self._add_to_cache(balanced_greedy(instance, options))
        self.bound = 0
        self._accept(*self._add_to_cache(random_fcfs(instance, options)))
        if self.deadline.limited:
            self._start_without_relaxation()
        self.bound = energetic_bound(self.energetic, self.value, MAX_PAIRS, self.deadline.part(BOUND_SHARE))
        self.runs = 0

    @property
    def done(self) -> bool:
        """True if the plan is proven optimal or time is over."""
        return self.bound >= self.value or self.deadline.expired

    @property
    def gap(self) -> Gap:
        """Bound and makespan."""
        return Gap(self.bound, self.value)

    @property
    def gap_is_wide(self) -> bool:
        """True if plan and bound are further apart than WIDE_GAP."""
        return not self.done and self.value - self.bound > WIDE_GAP * self.bound

    def candidate(self) -> Candidate:
        """Return the best plan; interruptions that do not shorten it are removed."""
        rows = [row for i, mask in enumerate(self.masks) for row in self._without_interruptions(i, mask)]
        return Candidate(
            helper_of(self.instance, self.masks), rows, min(self.bound, self.value), not self.deadline.limited
        )

    def round_relaxation(self) -> None:
        """Round the fractional assignment at the bound to a start."""
        if (
            self.done
            or self.instance.linked.size > MAX_PAIRS
            or (self.deadline.limited and self.energetic.share is None)
        ):
            return
        share = self.energetic.share
        if share is None:
            _, share = self.energetic.excess(self.bound)
        masks = None if share is None else self._round_shares(share)
        if masks is not None:
            self._accept(masks, max(self.cache.makespans(masks)))

    def tabu_search(self, effort: float) -> None:
        """Run tabu search from the best plan, with a new seed per call."""
        if self.done:
            return
        search = TabuSearch(self.cache, self.masks, f"{self.seed} {self.runs}", self._preferred_helpers())
        self.runs += 1
        search.run(effort=effort, enough=self.bound, deadline=self.deadline)
        self._accept(search.masks, search.value)

    def search_neighbourhoods(self, work: float) -> None:
        """Run large neighbourhood search from the best plan."""
        if self.done or self.instance.linked.size > MAX_PAIRS:
            return
        search = LargeNeighbourhoodSearch(self.master, self.masks, f"{self.seed} {self.runs}")
        self.runs += 1
        search.run(work=work, enough=self.bound, deadline=self.deadline)
        self._accept(search.masks, search.value)

    def branch_and_cut(self, effort: float) -> None:
        """Raise the bound by branch and cut and use its assignment as a start. effort: nodes times pairs."""
        pairs = self.instance.linked.size
        if self.done or pairs > MAX_BRANCHED:
            return
        found = branch_and_cut_bound(self.energetic, self.gap, max(1, round(effort / pairs)), self.deadline.left_s())
        self.bound = min(self.value, max(self.bound, found.bound))
        if found.masks is not None and self.cache.fits(found.masks):
            self._accept(found.masks, max(self.cache.makespans(found.masks)))

    def close_gap(self, *, work: float, rounds: int) -> None:
        """Bisect between bound and makespan while horizons are decided."""
        high, undecided = self.value, 0
        while (
            not self.done and self.bound < high and undecided < MAX_UNDECIDED and self.instance.linked.size <= MAX_PAIRS
        ):
            horizon = (self.bound + min(high, self.value) - 1) // 2
            verdict = self.master.decide(horizon, work=work, rounds=rounds, hint=self.masks, deadline=self.deadline)
            if verdict.impossible:
                self.bound = horizon + 1
                continue
            if verdict.masks is not None:
                self._accept(verdict.masks, max(self.cache.makespans(verdict.masks)))
            undecided += not verdict.meets_horizon
            high = min(horizon, self.value)

    def solve_cp_model(self, work: float) -> None:
        """Solve the whole problem by CP-SAT."""
        if self.done or not self.deadline.affords(self.instance.linked.size * MODEL_S):
            return
        answer = improve_plan(
            self.master,
            self.masks,
            self.cache.rows(self.masks),
            self.gap,
            SolverLimit(work, self.deadline.left_s()),
        )
        self.bound = max(self.bound, answer.bound)
        if answer.helper is not None:
            self._accept(*self._add_to_cache(Candidate(answer.helper, answer.rows)))

    def _without_interruptions(self, helper: int, mask: int) -> list[TaskRow]:
        """Return the helper's schedule, without interruptions if one within the makespan is found quickly."""
        rows, clients = self.cache.find(helper, mask).rows, clients_of(mask)
        if len(rows) == 2 * len(clients):
            return rows
        machine = SingleMachine(self.instance, helper, preemptive=False)
        nodes = 0 if self.deadline.expired else UNSPLIT_NODES
        return machine.solve(clients, nodes=nodes, below=self.value + 1, enough=self.value).rows or rows

    def _start_without_relaxation(self) -> None:
        """Build a start without linear programs: clients go to helpers with short paths that are not overloaded."""
        self.bound = max(self.energetic.path_bound(), volume_bound(self.instance))
        masks = self._round_shares(np.where(self.instance.linked, 1.0 / (1.0 + self.energetic.path_lengths), 0.0))
        if masks is not None:
            self._accept(masks, max(self.cache.makespans(masks)))

    def _preferred_helpers(self) -> list[list[int]]:
        """Return [client] its helpers by reduced cost of the relaxation, else by path length."""
        instance, reduced_cost = self.instance, self.energetic.reduced_cost
        if reduced_cost is None:
            reduced_cost = np.where(
                instance.linked, self.energetic.path_lengths + instance.forward + instance.backward, np.inf
            )
        order = np.lexsort((self.energetic.path_lengths, reduced_cost), axis=0)
        return [[int(i) for i in order[:, j] if instance.linked[i, j]] for j in range(instance.clients)]

    def _accept(self, masks: list[int], value: int) -> None:
        if value < self.value:
            self.masks, self.value = masks, value

    def _add_to_cache(self, candidate: Candidate) -> tuple[list[int], int]:
        """Add a candidate's schedules to the cache; return its masks and its makespan with the best known schedules."""
        masks = masks_of(self.instance, candidate.helper)
        ends = completion(self.instance, candidate.helper, candidate.rows)
        for i, mask in enumerate(masks):
            clients = set(clients_of(mask))
            rows = [row for row in candidate.rows if row.client in clients]
            if rows:
                self.cache.store(i, mask, MachineSchedule(max(ends[j] for j in clients), rows, 0))
        return masks, max(self.cache.makespans(masks))

    def _round_shares(self, share: Floats) -> list[int] | None:
        """Assign clients by decreasing share, unless Jackson's bound of the helper would exceed the horizon."""
        masks, room = [0] * self.instance.helpers, list(self.cache.capacity)
        for j in map(int, np.argsort(-share.max(axis=0), kind="stable")):
            options = []
            for i in map(int, np.argsort(-share[:, j], kind="stable")):
                if self.instance.linked[i, j] and self.cache.memory[j] <= room[i]:
                    least = self.cache.machines[i].bound(clients_of(masks[i] | 1 << j))
                    options.append((max(0, least - self.bound), -share[i, j], i))
            if not options:
                return None
            i = min(options)[2]
            masks[i] |= 1 << j
            room[i] -= self.cache.memory[j]
        return masks


SMALL = 20
"""Clients up to which the constraint solver, and beyond which local search, comes last."""


def auto(instance: Instance, options: SearchOptions = SearchOptions()) -> Candidate:  # noqa: B008 - immutable
    """Return a plan and a proven bound."""
    search = Search(instance, options)
    search.round_relaxation()
    search.tabu_search(300_000)
    if instance.clients <= SMALL:
        search.close_gap(work=0.5, rounds=40)
        search.solve_cp_model(work=3.0)
        search.tabu_search(600_000)
        search.close_gap(work=1.0, rounds=60)
        search.solve_cp_model(work=2.5)
    else:
        _auto_large(search)
    work = 10.0
    while not search.done and search.deadline.limited:
        search.search_neighbourhoods(work=work)
        search.tabu_search(2_000_000)
        search.close_gap(work=work, rounds=100)
        search.solve_cp_model(work=work)
        work *= 2
    return search.candidate()


def _auto_large(search: Search) -> None:
    """Spend more work on large problems while the gap is wide."""
    if search.gap_is_wide:
        search.search_neighbourhoods(work=9.0)
    search.close_gap(work=0.5, rounds=40)
    if not search.gap_is_wide:
        search.solve_cp_model(work=3.0)
    search.tabu_search(1_000_000)
    if not search.gap_is_wide:
        return search.tabu_search(3_000_000)
    search.branch_and_cut(effort=1_000_000)
    if search.gap_is_wide:
        search.search_neighbourhoods(work=9.0)
    if search.gap_is_wide:
        search.tabu_search(2_000_000)
    return None


def exact(instance: Instance, options: SearchOptions = SearchOptions()) -> Candidate:  # noqa: B008 - immutable
    """Return a plan and a proven bound."""
    search = Search(instance, options)
    search.round_relaxation()
    search.tabu_search(300_000)
    search.close_gap(work=1.0, rounds=40)
    search.solve_cp_model(work=20.0)
    search.close_gap(work=10.0, rounds=200)
    search.solve_cp_model(work=40.0)
    work = 80.0
    while not search.done and search.deadline.limited:
        search.close_gap(work=work, rounds=1000)
        search.solve_cp_model(work=work)
        work *= 2
    return search.candidate()
