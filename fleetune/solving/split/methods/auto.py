"""auto: the best start improved by local search, and a bound that closes in; ours.

J. Tirana et al. (INFOCOM 2024) choose between their ADMM and balanced-greedy by size. Here both baselines are among the
starts, so no plan of theirs is better; what follows ends as soon as the plan equals the bound. Work grows with the
problem within limits, so the same problem and seed give the same plan; with a time limit it goes on until then.
"""

from fleetune.solving.split.case import Case
from fleetune.solving.split.draft import Draft, Effort
from fleetune.solving.split.planner import Planner

SMALL = 20
"""Clients up to which the constraint solver has the last word; beyond it is local search."""


def plan(case: Case, effort: Effort = Effort()) -> Draft:  # noqa: B008 - immutable
    """A plan and a proven bound."""
    planner = Planner(case, effort)
    planner.round_off()
    planner.improve(300_000)
    if case.clients <= SMALL:
        planner.close_in(work=0.5, rounds=40)
        planner.solve_whole(work=3.0)
        planner.improve(600_000)
        planner.close_in(work=1.0, rounds=60)
        planner.solve_whole(work=2.5)
    else:
        _large(planner)
    work = 10.0
    while not planner.done and planner.watch.limited:
        planner.regroup(work=work)
        planner.improve(2_000_000)
        planner.close_in(work=work, rounds=100)
        planner.solve_whole(work=work)
        work *= 2
    return planner.draft()


def _large(planner: Planner) -> None:
    """Beyond SMALL: what is wide of its bound gets more of the search that mends it."""
    if planner.wide:
        planner.regroup(work=9.0)
    planner.close_in(work=0.5, rounds=40)
    if not planner.wide:
        planner.solve_whole(work=3.0)
    planner.improve(1_000_000)
    if not planner.wide:
        return planner.improve(3_000_000)
    planner.close_in_whole(effort=1_000_000)
    if planner.wide:
        planner.regroup(work=9.0)
    if planner.wide:
        planner.improve(2_000_000)
    return None
