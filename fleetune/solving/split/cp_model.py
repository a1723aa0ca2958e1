"""CP-SAT models of the whole problem: assignment and both directions at once, bounded by a known plan.

Without preemption a task is an optional interval on its client's helper. With preemption at the ends of slots (Tirana
et al., INFOCOM 2024, eq. (1)-(10)) it is a set of slots: the same problem exactly, but as large as its horizon.
Energetic cuts and Benders no-goods are added, because neither model proves much by itself once helpers are alike.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from fleetune.arrays import Bools
from fleetune.solving.split.assignment import SolverLimit, add_assignment, new_solver
from fleetune.solving.split.benders import BendersMaster
from fleetune.solving.split.instance import Instance
from fleetune.solving.split.schedule import BACKWARD, FORWARD, Gap, TaskRow, merged
from fleetune.solving.split.schedule_cache import helper_of

MAX_SLOTS = 60_000
"""Slot variables of a model: pairs times the slots open to them."""
MAX_PAID_SLOTS = 8_000
"""The same if interruptions cost something; larger models find nothing in time."""
MAX_INTERVALS = 4_000


class CpResult(NamedTuple):
    """Result of the solver."""

    helper: list[int] | None
    """[client], or None if no better plan was found."""
    rows: list[TaskRow]
    bound: int


def improve_plan(
    master: BendersMaster, masks: Sequence[int], rows: Sequence[TaskRow], gap: Gap, limit: SolverLimit
) -> CpResult:
    """Search for a plan better than `masks` and `rows`. gap: the best known bound and that plan's makespan."""
    model: _CpModel
    instance, opened = master.instance, master.energetic.open_at(gap.makespan - 1)
    most = MAX_PAID_SLOTS if instance.switch_cost.any() else MAX_SLOTS
    if instance.preemptive and _slots(instance, opened, gap.makespan - 1) <= most:
        model = _TimeIndexedModel(master, gap)
    elif int(opened.sum()) <= MAX_INTERVALS:
        model = _IntervalModel(master, gap)
    else:
        return CpResult(None, [], gap.lower_bound)
    model.hint(masks, rows)
    answer = model.solve(limit)
    # the interval model restricts preemptive problems: its plan is valid, its bound is not
    return answer if model.exact else answer._replace(bound=gap.lower_bound)


class _CpModel(ABC):
    """Common part of both models: assignment variables and the makespan to minimise."""

    def __init__(self, master: BendersMaster, gap: Gap) -> None:
        from ortools.sat.python import cp_model

        self.instance, self.master, self.gap = master.instance, master, gap
        self.model = cp_model.CpModel()
        self.makespan = self.model.new_int_var(gap.lower_bound, gap.makespan - 1, "makespan")
        opened = master.energetic.open_at(gap.makespan - 1)
        self.pairs: list[tuple[int, int]] = [(int(i), int(j)) for i, j in np.argwhere(opened)]
        self.on = add_assignment(self.model, opened, self.instance.helper_memory, self.instance.client_memory)
        self.possible = bool(opened.any(axis=0).all())
        self.exact = True
        self.reached: list[list[int]] = [[] for _ in range(self.instance.clients)]
        """[client], the helpers it may be on."""
        for i, j in self.pairs:
            self.reached[j].append(i)
        master.add_cuts(self.model, self.on, gap.makespan - 1)
        for row in master.energetic.cuts:
            if row.edge <= gap.lower_bound:
                held = [j for j in np.flatnonzero(row.weight).tolist() if (row.helper, j) in self.on]
                need = sum(int(row.weight[j]) * self.on[row.helper, j] for j in held)
                self.model.add(need + row.edge <= self.makespan)
        self.model.minimize(self.makespan)

    def at_helper(self, client: int, *tables: Any) -> Any:
        """Return the sum of the tables' entries at the client's helper."""
        return sum(sum(int(t[i, client]) for t in tables) * self.on[i, client] for i in self.reached[client])

    def hint_helper(self, masks: Sequence[int]) -> None:
        helper = helper_of(self.instance, masks)
        for (i, j), here in self.on.items():
            self.model.add_hint(here, helper[j] == i)

    def solve(self, limit: SolverLimit) -> CpResult:
        from ortools.sat.python import cp_model

        if not self.possible:
            return CpResult(None, [], self.gap.makespan)
        solver = new_solver(limit)
        status = solver.solve(self.model)
        if status == cp_model.INFEASIBLE:
            return CpResult(None, [], self.gap.makespan)
        bound = max(self.gap.lower_bound, int(np.ceil(solver.best_objective_bound - 1e-6)))
        if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
            return CpResult(None, [], bound)
        helper = [0] * self.instance.clients
        for (i, j), here in self.on.items():
            if solver.boolean_value(here):
                helper[j] = i
        return CpResult(helper, self.rows(solver, helper), bound)

    @abstractmethod
    def hint(self, masks: Sequence[int], rows: Sequence[TaskRow]) -> None:
        """Add a plan as a hint."""

    @abstractmethod
    def rows(self, solver: Any, helper: Sequence[int]) -> list[TaskRow]:
        """Return the schedule that was found."""


class _IntervalModel(_CpModel):
    """Model without preemption."""

    def __init__(self, master: BendersMaster, gap: Gap) -> None:
        super().__init__(master, gap)
        instance, model = self.instance, self.model
        self.exact = not instance.preemptive
        if not self.possible:
            return
        self.start = [
            [model.new_int_var(0, gap.makespan, "") for _ in range(instance.clients)] for _ in (FORWARD, BACKWARD)
        ]
        switches = np.repeat(2 * instance.switch_cost[:, None], instance.clients, axis=1)
        for j in range(instance.clients):
            ahead, back = self.start[FORWARD][j], self.start[BACKWARD][j]
            model.add(ahead >= self.at_helper(j, instance.release))
            model.add(back >= ahead + self.at_helper(j, instance.forward, instance.turnaround))
            model.add(self.makespan >= back + self.at_helper(j, instance.backward, instance.tail, switches))
        for i in range(instance.helpers):
            model.add_no_overlap(
                model.new_optional_fixed_size_interval_var(self.start[way][j], int(times[i, j]), self.on[i, j], "")
                for k, j in self.pairs
                if k == i
                for way, times in ((FORWARD, instance.forward), (BACKWARD, instance.backward))
            )

    def hint(self, masks: Sequence[int], rows: Sequence[TaskRow]) -> None:
        if self.possible:
            self.hint_helper(masks)
            for row in rows:
                self.model.add_hint(self.start[row.direction][row.client], row.start)

    def rows(self, solver: Any, helper: Sequence[int]) -> list[TaskRow]:
        found = []
        for way, times in ((FORWARD, self.instance.forward), (BACKWARD, self.instance.backward)):
            for j, i in enumerate(helper):
                start = int(solver.value(self.start[way][j]))
                found.append(TaskRow(j, way, start, start + int(times[i, j])))
        return merged(found)


class _TimeIndexedModel(_CpModel):
    """Model with preemption at the end of every slot."""

    def __init__(self, master: BendersMaster, gap: Gap) -> None:
        super().__init__(master, gap)
        instance, horizon = self.instance, gap.makespan - 1
        self.windows = {(i, j): _windows(instance, i, j, horizon) for i, j in self.pairs}
        self.runs: dict[tuple[int, int, int, int], Any] = {}
        """(helper, client, direction, slot) -> literal."""
        if not self.possible:
            return
        model = self.model
        self.forward_end = [model.new_int_var(0, horizon, "") for _ in range(instance.clients)]
        self.backward_end = [model.new_int_var(0, horizon, "") for _ in range(instance.clients)]
        pieces: list[list[Any]] = [[] for _ in range(instance.clients)]
        for i, j in self.pairs:
            pieces[j] += self._pair(i, j)
        for j in range(instance.clients):
            model.add(self.makespan >= self.backward_end[j] + self.at_helper(j, instance.tail) + sum(pieces[j]))
        slots: dict[tuple[int, int], list[Any]] = {}
        for (i, _, _, at), runs in self.runs.items():
            slots.setdefault((i, at), []).append(runs)
        for together in slots.values():
            model.add_at_most_one(together)

    def _pair(self, i: int, j: int) -> list[Any]:
        """Add the slots of both tasks of a pair; return the cost terms of its switches."""
        instance, model, here = self.instance, self.model, self.on[i, j]
        cost = int(instance.switch_cost[i])
        switches: list[Any] = []
        for way, length in ((FORWARD, int(instance.forward[i, j])), (BACKWARD, int(instance.backward[i, j]))):
            start, end = self.windows[i, j][way]
            runs = [model.new_bool_var("") for _ in range(start, end)]
            model.add(sum(runs) == length * here)
            for at, run in zip(range(start, end), runs, strict=True):
                self.runs[i, j, way, at] = run
                if way == FORWARD:
                    model.add(self.forward_end[j] >= at + 1).only_enforce_if(run)
                else:
                    model.add(self.forward_end[j] + int(instance.turnaround[i, j]) <= at).only_enforce_if(run)
                    model.add(self.backward_end[j] >= at + 1).only_enforce_if(run)
            if cost:
                for before, run in zip([None, *runs], runs, strict=False):
                    begins = model.new_bool_var("")
                    model.add_implication(begins, run)
                    model.add_bool_or([begins, ~run] if before is None else [begins, ~run, before])
                    switches.append(cost * begins)
        return switches

    def hint(self, masks: Sequence[int], rows: Sequence[TaskRow]) -> None:
        if not self.possible:
            return
        self.hint_helper(masks)
        helper = helper_of(self.instance, masks)
        busy = {(helper[r.client], r.client, r.direction, at) for r in rows for at in range(r.start, r.end)}
        for key, run in self.runs.items():
            self.model.add_hint(run, key in busy)

    def rows(self, solver: Any, helper: Sequence[int]) -> list[TaskRow]:
        return merged(
            TaskRow(j, way, at, at + 1) for (i, j, way, at), run in self.runs.items() if solver.boolean_value(run)
        )


def _slots(instance: Instance, opened: Bools, horizon: int) -> int:
    """Return the number of slot variables."""
    alone = instance.release + instance.forward + instance.turnaround + instance.backward + instance.tail
    slack = horizon - alone - 2 * instance.switch_cost[:, None]
    return int((2 * slack + instance.forward + instance.backward)[opened].sum())


def _windows(instance: Instance, i: int, j: int, horizon: int) -> tuple[tuple[int, int], tuple[int, int]]:
    """Return [start, end) of a client's forward and backward task within the horizon."""
    release, forward, turnaround, backward, tail = (
        int(table[i, j])
        for table in (instance.release, instance.forward, instance.turnaround, instance.backward, instance.tail)
    )
    last = horizon - tail - 2 * int(instance.switch_cost[i])
    return (release, last - backward - turnaround), (release + forward + turnaround, last)
