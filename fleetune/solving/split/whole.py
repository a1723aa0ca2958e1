"""The whole problem for the constraint solver: assignment and both directions at once, below a plan already known.

Without interruptions a task is an interval that is present on its client's helper. With them, preemption being allowed
at the ends of slots (Tirana et al., INFOCOM 2024, eq. (1)-(10)), it is a choice of slots: the same problem, exactly,
but as large as its horizon. The energetic rows and the cuts of the Benders search go in as well, since neither model
proves much by itself once helpers are alike.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from fleetune.solving.split.book import helper_of
from fleetune.solving.split.case import Bools, Case
from fleetune.solving.split.master import Master
from fleetune.solving.split.schedule import BACKWARD, FORWARD, Row, merged

MOST_SLOTS = 60_000
"""Choices of slots in a model: pairs times the slots open to them."""
MOST_PAID_SLOTS = 8_000
"""Where interruptions cost something: beyond that nothing comes of it but waiting."""
MOST_INTERVALS = 4_000


class Answer(NamedTuple):
    """What the solver made of it."""

    helper: list[int] | None
    """None: no better plan was found."""
    rows: list[Row]
    bound: int


def improved(
    master: Master, masks: Sequence[int], rows: Sequence[Row], span: tuple[int, int], limits: tuple[float, float]
) -> Answer:
    """Look for a plan better than `masks` and `rows`.

    span: the best bound known and that plan's makespan; limits: deterministic seconds of work, and real ones.
    """
    model: _Whole
    case, opened = master.case, master.energetic.open_at(span[1] - 1)
    most = MOST_PAID_SLOTS if case.switch_cost.any() else MOST_SLOTS
    if case.preemptive and _slots(case, opened, span[1] - 1) <= most:
        model = _Slots(master, span)
    elif int(opened.sum()) <= MOST_INTERVALS:
        model = _Intervals(master, span)
    else:
        return Answer(None, [], span[0])
    model.hint(masks, rows)
    answer = model.solve(*limits)
    # without interruptions is one way of many where they are allowed: then the plan counts, the proof does not
    return answer if model.exact else answer._replace(bound=span[0])


class _Whole(ABC):
    """What both models share: who is on which helper, and the makespan to be lowered."""

    def __init__(self, master: Master, span: tuple[int, int]) -> None:
        from ortools.sat.python import cp_model

        self.case, self.master, self.span = master.case, master, span
        self.model = cp_model.CpModel()
        self.makespan = self.model.new_int_var(span[0], span[1] - 1, "makespan")
        opened = master.energetic.open_at(span[1] - 1)
        self.pairs: list[tuple[int, int]] = [(int(i), int(j)) for i, j in np.argwhere(opened)]
        self.on: dict[tuple[int, int], Any] = {pair: self.model.new_bool_var("") for pair in self.pairs}
        self.possible = bool(opened.any(axis=0).all())
        self.exact = True
        self.reached: list[list[int]] = [[] for _ in range(self.case.clients)]
        """[client] The helpers it may be on."""
        for i, j in self.pairs:
            self.reached[j].append(i)
        for j, helpers in enumerate(self.reached):
            self.model.add_exactly_one(self.on[i, j] for i in helpers)
        for i in range(self.case.helpers):
            held = [j for k, j in self.pairs if k == i]
            self.model.add(sum(master.book.memory[j] * self.on[i, j] for j in held) <= master.book.room[i])
        master.rule_out(self.model, self.on, span[1] - 1)
        for row in master.energetic.rows:
            if row.edge <= span[0]:
                held = [j for j in np.flatnonzero(row.weight).tolist() if (row.helper, j) in self.on]
                need = sum(int(row.weight[j]) * self.on[row.helper, j] for j in held)
                self.model.add(need + row.edge <= self.makespan)
        self.model.minimize(self.makespan)

    def of(self, client: int, *tables: Any) -> Any:
        """The sum of the tables' entries at the client's helper."""
        return sum(sum(int(t[i, client]) for t in tables) * self.on[i, client] for i in self.reached[client])

    def hint_helper(self, masks: Sequence[int]) -> None:
        helper = helper_of(self.case, masks)
        for (i, j), here in self.on.items():
            self.model.add_hint(here, helper[j] == i)

    def solve(self, work: float, left_s: float) -> Answer:
        from ortools.sat.python import cp_model

        if not self.possible:
            return Answer(None, [], self.span[1])
        solver = cp_model.CpSolver()
        solver.parameters.num_workers = 1
        solver.parameters.max_deterministic_time = work
        if left_s < 1e9:
            solver.parameters.max_time_in_seconds = max(0.01, left_s)
        status = solver.solve(self.model)
        if status == cp_model.INFEASIBLE:
            return Answer(None, [], self.span[1])
        bound = max(self.span[0], int(np.ceil(solver.best_objective_bound - 1e-6)))
        if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
            return Answer(None, [], bound)
        helper = [0] * self.case.clients
        for (i, j), here in self.on.items():
            if solver.boolean_value(here):
                helper[j] = i
        return Answer(helper, self.rows(solver, helper), bound)

    @abstractmethod
    def hint(self, masks: Sequence[int], rows: Sequence[Row]) -> None:
        """Where to start."""

    @abstractmethod
    def rows(self, solver: Any, helper: Sequence[int]) -> list[Row]:
        """The schedule that was found."""


class _Intervals(_Whole):
    """Tasks that are not interrupted."""

    def __init__(self, master: Master, span: tuple[int, int]) -> None:
        super().__init__(master, span)
        case, model = self.case, self.model
        self.exact = not case.preemptive
        if not self.possible:
            return
        self.start = [[model.new_int_var(0, span[1], "") for _ in range(case.clients)] for _ in (FORWARD, BACKWARD)]
        switches = np.repeat(2 * case.switch_cost[:, None], case.clients, axis=1)
        for j in range(case.clients):
            ahead, back = self.start[FORWARD][j], self.start[BACKWARD][j]
            model.add(ahead >= self.of(j, case.release))
            model.add(back >= ahead + self.of(j, case.forward, case.between))
            model.add(self.makespan >= back + self.of(j, case.backward, case.tail, switches))
        for i in range(case.helpers):
            model.add_no_overlap(
                model.new_optional_fixed_size_interval_var(self.start[way][j], int(times[i, j]), self.on[i, j], "")
                for k, j in self.pairs
                if k == i
                for way, times in ((FORWARD, case.forward), (BACKWARD, case.backward))
            )

    def hint(self, masks: Sequence[int], rows: Sequence[Row]) -> None:
        if self.possible:
            self.hint_helper(masks)
            for row in rows:
                self.model.add_hint(self.start[row.direction][row.client], row.start)

    def rows(self, solver: Any, helper: Sequence[int]) -> list[Row]:
        found = []
        for way, times in ((FORWARD, self.case.forward), (BACKWARD, self.case.backward)):
            for j, i in enumerate(helper):
                start = int(solver.value(self.start[way][j]))
                found.append(Row(j, way, start, start + int(times[i, j])))
        return merged(found)


class _Slots(_Whole):
    """Tasks that may be interrupted at the end of every slot."""

    def __init__(self, master: Master, span: tuple[int, int]) -> None:
        super().__init__(master, span)
        case, horizon = self.case, span[1] - 1
        self.windows = {(i, j): _windows(case, i, j, horizon) for i, j in self.pairs}
        self.runs: dict[tuple[int, int, int, int], Any] = {}
        """(helper, client, direction, slot)"""
        if not self.possible:
            return
        model = self.model
        self.forward_end = [model.new_int_var(0, horizon, "") for _ in range(case.clients)]
        self.backward_end = [model.new_int_var(0, horizon, "") for _ in range(case.clients)]
        pieces: list[list[Any]] = [[] for _ in range(case.clients)]
        for i, j in self.pairs:
            pieces[j] += self._pair(i, j)
        for j in range(case.clients):
            model.add(self.makespan >= self.backward_end[j] + self.of(j, case.tail) + sum(pieces[j]))
        slots: dict[tuple[int, int], list[Any]] = {}
        for (i, _, _, at), runs in self.runs.items():
            slots.setdefault((i, at), []).append(runs)
        for together in slots.values():
            model.add_at_most_one(together)

    def _pair(self, i: int, j: int) -> list[Any]:
        """The slots of both tasks; the switches they cost."""
        case, model, here = self.case, self.model, self.on[i, j]
        cost = int(case.switch_cost[i])
        switches: list[Any] = []
        for way, length in ((FORWARD, int(case.forward[i, j])), (BACKWARD, int(case.backward[i, j]))):
            start, end = self.windows[i, j][way]
            runs = [model.new_bool_var("") for _ in range(start, end)]
            model.add(sum(runs) == length * here)
            for at, run in zip(range(start, end), runs, strict=True):
                self.runs[i, j, way, at] = run
                if way == FORWARD:
                    model.add(self.forward_end[j] >= at + 1).only_enforce_if(run)
                else:
                    model.add(self.forward_end[j] + int(case.between[i, j]) <= at).only_enforce_if(run)
                    model.add(self.backward_end[j] >= at + 1).only_enforce_if(run)
            if cost:
                for before, run in zip([None, *runs], runs, strict=False):
                    begins = model.new_bool_var("")
                    model.add_implication(begins, run)
                    model.add_bool_or([begins, ~run] if before is None else [begins, ~run, before])
                    switches.append(cost * begins)
        return switches

    def hint(self, masks: Sequence[int], rows: Sequence[Row]) -> None:
        if not self.possible:
            return
        self.hint_helper(masks)
        helper = helper_of(self.case, masks)
        busy = {(helper[r.client], r.client, r.direction, at) for r in rows for at in range(r.start, r.end)}
        for key, run in self.runs.items():
            self.model.add_hint(run, key in busy)

    def rows(self, solver: Any, helper: Sequence[int]) -> list[Row]:
        return merged(
            Row(j, way, at, at + 1) for (i, j, way, at), run in self.runs.items() if solver.boolean_value(run)
        )


def _slots(case: Case, opened: Bools, horizon: int) -> int:
    """How many choices of slots there are."""
    alone = case.release + case.forward + case.between + case.backward + case.tail
    slack = horizon - alone - 2 * case.switch_cost[:, None]
    return int((2 * slack + case.forward + case.backward)[opened].sum())


def _windows(case: Case, i: int, j: int, horizon: int) -> tuple[tuple[int, int], tuple[int, int]]:
    """[start, end) of a client's forward and backward within the horizon."""
    release, forward, between, backward, tail = (
        int(table[i, j]) for table in (case.release, case.forward, case.between, case.backward, case.tail)
    )
    last = horizon - tail - 2 * int(case.switch_cost[i])
    return (release, last - backward - between), (release + forward + between, last)
