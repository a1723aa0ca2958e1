"""Any placement that fits the memories, where runs of the line do not: operators packed into devices one by one."""

import numpy as np

from fleetune.solving.opfence.case import Case, Place
from fleetune.solving.opfence.watch import ENDLESS, Watch

WORK = 5.0
"""Of the constraint solver, in its deterministic seconds, where no clock limits it."""
LEAST_S = 0.1
"""Of the constraint solver, however little is left."""
MOST_PLACES = 50_000
"""Operators times devices that the constraint solver is asked about."""


def packed(case: Case, watch: Watch = ENDLESS) -> tuple[Place | None, bool]:
    """A placement that fits, or None; and whether that is proven.

    Largest first into the device that it fills best or that stays emptiest; then a constraint solver, no longer than
    the watch lets it.
    """
    place = dealt_out(case)
    if place is not None:
        return place, True
    if case.operators * case.devices > MOST_PLACES:
        return None, False
    return _solved(case, watch)


def dealt_out(case: Case) -> Place | None:
    """A placement that fits, found largest first, in no time; None says nothing."""
    for tight in (True, False):
        place = _one_by_one(case, tight)
        if place is not None and case.fits(place):
            return place
    return None


def _one_by_one(case: Case, tight: bool) -> Place | None:
    left = case.budget_bytes.copy()
    found = np.empty(case.operators, np.int64)
    for operator in np.argsort(-case.memory_bytes, kind="stable").tolist():
        need = case.memory_bytes[operator]
        after = left - need
        if after.max() < 0:
            return None
        device = int(np.where(after < 0, np.inf, after).argmin()) if tight else int(after.argmax())
        found[operator] = device
        left[device] -= need
    return found


def _solved(case: Case, watch: Watch) -> tuple[Place | None, bool]:
    from ortools.sat.python import cp_model

    model = cp_model.CpModel()
    # Rounded so that whatever fits these fits the device; of whole numbers nothing is lost.
    need = [int(np.ceil(x)) for x in case.memory_bytes.tolist()]
    whole = all(x == y for x, y in zip(need, case.memory_bytes.tolist(), strict=True))
    on = [[model.new_bool_var("") for _ in range(case.devices)] for _ in need]
    for places in on:
        model.add_exactly_one(places)
    for device, budget in enumerate(case.problem.devices):
        model.add(sum(n * places[device] for n, places in zip(need, on, strict=True)) <= budget.memory_bytes)
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    if watch.limited:
        solver.parameters.max_time_in_seconds = max(watch.left_s(), LEAST_S)
    else:
        solver.parameters.max_deterministic_time = WORK
    status = solver.solve(model)
    if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return None, whole and status == cp_model.INFEASIBLE
    place = np.array([next(d for d, x in enumerate(places) if solver.value(x)) for places in on], np.int64)
    return (place, True) if case.fits(place) else (None, False)
