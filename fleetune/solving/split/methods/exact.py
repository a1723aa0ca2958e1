"""exact: the constraint solver over assignment and both directions at once, until the plan is proven or work is done.

Problem P of J. Tirana et al. (INFOCOM 2024, eq. (1)-(11)), which their solver left with a gap of 40 % after 14 hours at
20 clients and 5 helpers. What closes it here: the energetic bound, a logic-based Benders search with an exact branch
and bound per helper (`master`, `lane`), and at last the whole problem for CP-SAT, warm-started (`whole`). A preemptive
plan is proven best by the Benders search at any horizon; where interruptions cost something and a task would be worth
interrupting twice, only by the whole model, which is used while the horizon is short. `lower_bound` is what was proven.
"""

from fleetune.solving.split.case import Case
from fleetune.solving.split.draft import Draft, Effort
from fleetune.solving.split.planner import Planner


def plan(case: Case, effort: Effort = Effort()) -> Draft:  # noqa: B008 - immutable
    """A plan and a proven bound."""
    planner = Planner(case, effort)
    planner.round_off()
    planner.improve(300_000)
    planner.close_in(work=1.0, rounds=40)
    planner.solve_whole(work=20.0)
    planner.close_in(work=10.0, rounds=200)
    planner.solve_whole(work=40.0)
    work = 80.0
    while not planner.done and planner.watch.limited:
        planner.close_in(work=work, rounds=1000)
        planner.solve_whole(work=work)
        work *= 2
    return planner.draft()
