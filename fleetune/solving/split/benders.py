"""Logic-based Benders decomposition: assignments that may meet a horizon, and proofs that none does.

Source: J. N. Hooker, G. Ottosson, "Logic-based Benders decomposition", Mathematical Programming 96, 2003. The CP-SAT
master problem chooses an assignment within links, memory and energetic cuts; each helper's set of clients is then a
sub-problem (`SingleMachine`). A set that misses the horizon is reduced to a minimal subset and becomes a no-good on
every helper where it misses the horizon, and the master chooses again. When it has no choice left, no plan of that
horizon exists: every cut is exact integer arithmetic.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from fleetune.arrays import Bools
from fleetune.solving.limits import Deadline
from fleetune.solving.split.assignment import SolverLimit, add_assignment, new_solver
from fleetune.solving.split.energetic import EnergeticBound
from fleetune.solving.split.schedule_cache import ScheduleCache, clients_of, helper_of

BUILD_COST = 0.02
"""Approximate cost of building one master problem, in deterministic seconds."""
PROOF_NODES = 4000
"""Branch-and-bound nodes for a proof that a set of clients misses a horizon."""


class Verdict(NamedTuple):
    """Result for one horizon."""

    masks: list[int] | None
    """[helper], mask of its clients in the last assignment that no cut excludes."""
    meets_horizon: bool
    """True if schedules of `masks` within the horizon are known."""
    impossible: bool
    """True if it is proven that no plan has this makespan."""


class _Choice(NamedTuple):
    """Solution of one master problem; masks None: none was found in time, or none exists if `impossible`."""

    masks: list[int] | None
    impossible: bool
    spent: float
    """Deterministic solver seconds."""


class BendersMaster:
    """Master problem and its cuts, which it keeps across horizons."""

    def __init__(self, energetic: EnergeticBound, cache: ScheduleCache, seed: int = 0) -> None:
        self.energetic, self.cache, self.instance = energetic, cache, cache.instance
        self.seed = seed
        self.spent = 0.0
        """Deterministic solver seconds so far, plus BUILD_COST per call."""
        self.nogoods: dict[tuple[int, int], int] = {}
        """(representative helper, mask of clients) -> lower bound on their makespan there."""

    def decide(
        self,
        horizon: int,
        *,
        work: float,
        rounds: int,
        hint: Sequence[int] | None,
        deadline: Deadline,
        among: Bools | None = None,
    ) -> Verdict:
        """Search for a plan within the horizon, for at most `rounds` master problems and `work` deterministic seconds.

        among: [helper, client] pairs to choose from; clients without a pair stay out of the problem.
        """
        opened = self.energetic.open_at(horizon)
        within = opened if among is None else opened & among
        needed = np.flatnonzero(np.ones(opened.shape[1]) if among is None else among.any(axis=0)).tolist()
        if not within[:, needed].any(axis=0).all():
            return Verdict(None, False, True)
        masks: list[int] | None = None
        for _ in range(rounds):
            if work <= 0 or deadline.left_s() <= 0:
                break
            choice = self._solve_master(horizon, within, hint, SolverLimit(work, deadline.left_s()))
            work -= choice.spent
            self.spent += choice.spent + BUILD_COST
            if choice.impossible:
                return Verdict(None, False, True)
            if choice.masks is None:
                break
            masks = choice.masks
            share = np.zeros(self.instance.linked.shape)
            share[np.array(helper_of(self.instance, masks))[needed], needed] = 1.0
            if self.energetic.separate(share, horizon):
                continue
            late = [i for i, mask in enumerate(masks) if self._late(i, mask, horizon)]
            if not late:
                return Verdict(masks, True, False)
            if not sum(self._add_nogoods(i, masks[i], horizon) for i in late):
                break
        return Verdict(masks, False, False)

    def _late(self, helper: int, mask: int, horizon: int) -> bool:
        return mask != 0 and self.cache.find(helper, mask).value > horizon and not self._fits(helper, mask, horizon)

    def _fits(self, helper: int, mask: int, horizon: int) -> bool:
        """Return True if a search finds a schedule within the horizon."""
        found = self.cache.decide(helper, mask, horizon, PROOF_NODES)
        return found.value <= horizon

    def _impossible(self, helper: int, mask: int, horizon: int) -> bool:
        if mask & ~self.cache.allowed[helper]:
            return True
        machine = self.cache.machines[helper]
        clients = clients_of(mask)
        if machine.bound(clients) > horizon:
            return True
        return self.cache.decide(helper, mask, horizon, PROOF_NODES).bound > horizon

    def _add_nogoods(self, helper: int, mask: int, horizon: int) -> int:
        """Add no-goods that exclude the set, each reduced by dropping clients one by one; return how many are new."""
        if not self._impossible(helper, mask, horizon):
            return 0
        added = 0
        clients = clients_of(mask)
        for order in (clients, clients[::-1]):
            kept = mask
            for client in order:
                if self._impossible(helper, kept ^ 1 << client, horizon):
                    kept ^= 1 << client
            for i in range(self.instance.helpers):
                if self.cache.representative[i] == i and (
                    i == self.cache.representative[helper] or self._impossible(i, kept, horizon)
                ):
                    added += self._add_nogood((i, kept), horizon + 1)
        return added

    def _add_nogood(self, cut: tuple[int, int], least: int) -> int:
        if self.nogoods.get(cut, 0) >= least:
            return 0
        self.nogoods[cut] = least
        return 1

    def _solve_master(self, horizon: int, opened: Bools, hint: Sequence[int] | None, limit: SolverLimit) -> _Choice:
        """Choose an assignment that no cut excludes."""
        from ortools.sat.python import cp_model

        model = cp_model.CpModel()
        on = add_assignment(model, opened, self.instance.helper_memory, self.instance.client_memory)
        self.add_cuts(model, on, horizon)
        if hint is not None:
            helper = helper_of(self.instance, hint)
            for (i, j), here in on.items():
                model.add_hint(here, helper[j] == i)
        solver = new_solver(limit, seed=self.seed)
        status = solver.solve(model)
        spent = max(1e-3, float(solver.response_proto.deterministic_time))
        if status == cp_model.INFEASIBLE:
            return _Choice(None, True, spent)
        if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
            return _Choice(None, False, spent)
        masks = [0] * self.instance.helpers
        for (i, j), here in on.items():
            if solver.boolean_value(here):
                masks[i] |= 1 << j
        return _Choice(masks, False, spent)

    def add_cuts(self, model: Any, on: dict[tuple[int, int], Any], horizon: int) -> None:
        """Add the energetic cuts and no-goods that are valid at the horizon."""
        helpers = {i for i, _ in on}
        for row in self.energetic.cuts:
            if row.helper not in helpers:
                continue
            room = horizon - row.edge
            held = [(int(row.weight[j]), j) for j in np.flatnonzero(row.weight).tolist() if (row.helper, j) in on]
            if room >= 0 and sum(weight for weight, _ in held) > room:
                model.add(sum(weight * on[row.helper, j] for weight, j in held) <= room)
        for (helper, mask), least in self.nogoods.items():
            if least <= horizon:
                continue
            members = clients_of(mask)
            for i, alike in enumerate(self.cache.representative):
                if alike == helper and all((i, j) in on for j in members):
                    model.add_bool_or(~on[i, j] for j in members)
