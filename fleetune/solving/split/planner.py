"""The best plan and the best bound of one problem, and what makes either better; `auto` and `exact` differ in how much.

Starts are the paper's heuristics and the energetic bound's fractional assignment, rounded. Local search improves them;
the Benders search of `master` closes in from below, and its assignments are starts as well; the constraint solver takes
the whole problem where that is small. All share one `Book`, so that no helper's schedule is worked out twice.
"""

from __future__ import annotations

import numpy as np

from fleetune.solving.split.book import Book, clients_of, helper_of, masks_of
from fleetune.solving.split.bound import energetic_bound, volume_bound
from fleetune.solving.split.case import Case
from fleetune.solving.split.draft import Draft, Effort
from fleetune.solving.split.energetic import Energetic
from fleetune.solving.split.grid import Floats
from fleetune.solving.split.integral import integral_bound
from fleetune.solving.split.lane import Found, Lane
from fleetune.solving.split.local_search import LocalSearch
from fleetune.solving.split.master import Master
from fleetune.solving.split.methods import balanced_greedy, random_fcfs
from fleetune.solving.split.regroup import Regroup
from fleetune.solving.split.schedule import Row, completion
from fleetune.solving.split.watch import Watch
from fleetune.solving.split.whole import improved

MOST_PAIRS = 20_000
"""Helpers times clients up to which linear programs and the master are worth their time."""
MOST_BRANCHED = 3_000
"""Helpers times clients up to which branch and cut is."""
WIDE = 0.02
"""Of the bound: a plan further from it than that deserves more work."""
MOST_UNDECIDED = 6
"""Horizons of one go that neither get a plan nor are ruled out."""
CALM_NODES = 500
BOUND_SHARE = 0.4
"""Of a time limit, at most, for the first bound."""
MODEL_S = 2.5e-4
"""About what stating the whole problem to a constraint solver takes for each pair: no clock ends that."""


class Planner:
    """One problem being solved: `masks` has the clients of each helper in the best plan, `value` its makespan."""

    def __init__(self, case: Case, effort: Effort) -> None:
        self.case, self.seed = case, effort.seed
        self.watch = Watch(effort.time_limit_s)
        self.book, self.energetic = Book(case), Energetic(case)
        self.master = Master(self.energetic, self.book, effort.seed)
        self.masks, self.value = self._taken(balanced_greedy.plan(case, effort))
        self.bound = 0
        self._offer(*self._taken(random_fcfs.plan(case, effort)))
        if self.watch.limited:
            self._start_quickly()
        self.bound = energetic_bound(self.energetic, self.value, MOST_PAIRS, self.watch.part(BOUND_SHARE))
        self.runs = 0

    @property
    def done(self) -> bool:
        """Proven to be the best, or out of time."""
        return self.bound >= self.value or self.watch.over()

    @property
    def wide(self) -> bool:
        """Plan and bound are still far apart."""
        return not self.done and self.value - self.bound > WIDE * self.bound

    def draft(self) -> Draft:
        """What was found; no task is interrupted where that helps nobody."""
        rows = [row for i, mask in enumerate(self.masks) for row in self._calm(i, mask)]
        return Draft(helper_of(self.case, self.masks), rows, min(self.bound, self.value), not self.watch.limited)

    def round_off(self) -> None:
        """A start from the fractional assignment at the bound."""
        if self.done or self.case.linked.size > MOST_PAIRS or (self.watch.limited and self.energetic.share is None):
            return
        share = self.energetic.share
        if share is None:
            _, share = self.energetic.excess(self.bound)
        masks = None if share is None else self._rounded(share)
        if masks is not None:
            self._offer(masks, max(self.book.values(masks)))

    def improve(self, effort: float) -> None:
        """Local search from the best plan; every run goes another way."""
        if self.done:
            return
        search = LocalSearch(self.book, self.masks, f"{self.seed} {self.runs}", self._near())
        self.runs += 1
        search.run(effort=effort, enough=self.bound, over=self.watch.over)
        self._offer(search.masks, search.value)

    def regroup(self, work: float) -> None:
        """Some helpers' clients at a time dealt out anew."""
        if self.done or self.case.linked.size > MOST_PAIRS:
            return
        search = Regroup(self.master, self.masks, f"{self.seed} {self.runs}")
        self.runs += 1
        search.run(work=work, enough=self.bound, left_s=self.watch.left_s)
        self._offer(search.masks, search.value)

    def close_in_whole(self, effort: float) -> None:
        """The bound by branch and cut; its assignment is a start for regrouping. effort: nodes times pairs."""
        pairs = self.case.linked.size
        if self.done or pairs > MOST_BRANCHED:
            return
        found = integral_bound(
            self.energetic, (self.bound, self.value), max(1, round(effort / pairs)), self.watch.left_s()
        )
        self.bound = min(self.value, max(self.bound, found.bound))
        if found.masks is not None and self.book.fits(found.masks):
            self._offer(found.masks, max(self.book.values(found.masks)))

    def close_in(self, *, work: float, rounds: int) -> None:
        """Halve what lies between bound and plan as long as horizons are decided."""
        high, undecided = self.value, 0
        while (
            not self.done and self.bound < high and undecided < MOST_UNDECIDED and self.case.linked.size <= MOST_PAIRS
        ):
            horizon = (self.bound + min(high, self.value) - 1) // 2
            verdict = self.master.decide(horizon, work=work, rounds=rounds, hint=self.masks, left_s=self.watch.left_s)
            if verdict.impossible:
                self.bound = horizon + 1
                continue
            if verdict.masks is not None:
                self._offer(verdict.masks, max(self.book.values(verdict.masks)))
            undecided += not verdict.kept
            high = min(horizon, self.value)

    def solve_whole(self, work: float) -> None:
        """The constraint solver on everything at once."""
        if self.done or not self.watch.affords(self.case.linked.size * MODEL_S):
            return
        answer = improved(
            self.master,
            self.masks,
            self.book.rows(self.masks),
            (self.bound, self.value),
            (work, self.watch.left_s()),
        )
        self.bound = max(self.bound, answer.bound)
        if answer.helper is not None:
            self._offer(*self._taken(Draft(answer.helper, answer.rows)))

    def _calm(self, helper: int, mask: int) -> list[Row]:
        """The helper's schedule, without interruptions if one within the makespan of all is easily found."""
        rows, clients = self.book.find(helper, mask).rows, clients_of(mask)
        if len(rows) == 2 * len(clients):
            return rows
        lane = Lane(self.case, helper, preemptive=False)
        nodes = 0 if self.watch.over() else CALM_NODES
        return lane.solve(clients, nodes=nodes, below=self.value + 1, enough=self.value).rows or rows

    def _start_quickly(self) -> None:
        """A start without linear programs: clients where their paths are short, unless the helper has too much."""
        self.bound = max(self.energetic.path_bound(), volume_bound(self.case))
        masks = self._rounded(np.where(self.case.linked, 1.0 / (1.0 + self.energetic.paths), 0.0))
        if masks is not None:
            self._offer(masks, max(self.book.values(masks)))

    def _near(self) -> list[list[int]]:
        """Of each client its helpers, those first that the linear program finds cheap, or that are quick with it."""
        case, price = self.case, self.energetic.price
        if price is None:
            price = np.where(case.linked, self.energetic.paths + case.forward + case.backward, np.inf)
        order = np.lexsort((self.energetic.paths, price), axis=0)
        return [[int(i) for i in order[:, j] if case.linked[i, j]] for j in range(case.clients)]

    def _offer(self, masks: list[int], value: int) -> None:
        if value < self.value:
            self.masks, self.value = masks, value

    def _taken(self, draft: Draft) -> tuple[list[int], int]:
        """A method's plan with each helper's schedule at least as good as it has it."""
        masks = masks_of(self.case, draft.helper)
        ends = completion(self.case, draft.helper, draft.rows)
        for i, mask in enumerate(masks):
            clients = set(clients_of(mask))
            rows = [row for row in draft.rows if row.client in clients]
            if rows:
                self.book.learn(i, mask, Found(max(ends[j] for j in clients), rows, 0))
        return masks, max(self.book.values(masks))

    def _rounded(self, share: Floats) -> list[int] | None:
        """Clients where most of them is, surest first, unless Jackson's bound there would exceed the horizon."""
        masks, room = [0] * self.case.helpers, list(self.book.room)
        for j in map(int, np.argsort(-share.max(axis=0), kind="stable")):
            options = []
            for i in map(int, np.argsort(-share[:, j], kind="stable")):
                if self.case.linked[i, j] and self.book.memory[j] <= room[i]:
                    least = self.book.lanes[i].bound(clients_of(masks[i] | 1 << j))
                    options.append((max(0, least - self.bound), -share[i, j], i))
            if not options:
                return None
            i = min(options)[2]
            masks[i] |= 1 << j
            room[i] -= self.book.memory[j]
        return masks
