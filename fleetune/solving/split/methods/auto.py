"""Our methods `auto` and `exact`.

auto: local search from the best start, and a rising lower bound. J. Tirana et al. (INFOCOM 2024) choose between their
ADMM and balanced-greedy by size. Here both baselines are among the starts, so that no plan of theirs is better; the
search ends once the plan equals the bound. Work grows with the problem within limits, so that the same problem and seed
give the same plan; with a time limit it continues until then.

exact: CP-SAT over assignment and both directions at once, until the plan is proven or work is done. It solves problem P
of J. Tirana et al. (eq. (1)-(11)), which their solver left with a gap of 40 % after 14 hours at 20 clients and 5
helpers. The gap is closed by the energetic bound, a logic-based Benders search with an exact branch and bound per
helper (`benders`, `single_machine`), and last the whole problem in CP-SAT (`cp_model`). The Benders search proves
preemptive plans at any horizon; if interruptions cost something and a task is worth interrupting twice, only the CP-SAT
model does, which is used while the horizon is short. `lower_bound` is the bound that was proven.
"""

from fleetune.solving.split.instance import Instance
from fleetune.solving.split.planner import Planner
from fleetune.solving.split.schedule import Candidate, SearchOptions

SMALL = 20
"""Clients up to which the constraint solver, and beyond which local search, comes last."""


def auto(instance: Instance, options: SearchOptions = SearchOptions()) -> Candidate:  # noqa: B008 - immutable
    """Return a plan and a proven bound."""
    planner = Planner(instance, options)
    planner.round_relaxation()
    planner.tabu_search(300_000)
    if instance.clients <= SMALL:
        planner.close_gap(work=0.5, rounds=40)
        planner.solve_cp_model(work=3.0)
        planner.tabu_search(600_000)
        planner.close_gap(work=1.0, rounds=60)
        planner.solve_cp_model(work=2.5)
    else:
        _large(planner)
    work = 10.0
    while not planner.done and planner.deadline.limited:
        planner.search_neighbourhoods(work=work)
        planner.tabu_search(2_000_000)
        planner.close_gap(work=work, rounds=100)
        planner.solve_cp_model(work=work)
        work *= 2
    return planner.candidate()


def _large(planner: Planner) -> None:
    """Spend more work on large problems while the gap is wide."""
    if planner.gap_is_wide:
        planner.search_neighbourhoods(work=9.0)
    planner.close_gap(work=0.5, rounds=40)
    if not planner.gap_is_wide:
        planner.solve_cp_model(work=3.0)
    planner.tabu_search(1_000_000)
    if not planner.gap_is_wide:
        return planner.tabu_search(3_000_000)
    planner.branch_and_cut(effort=1_000_000)
    if planner.gap_is_wide:
        planner.search_neighbourhoods(work=9.0)
    if planner.gap_is_wide:
        planner.tabu_search(2_000_000)
    return None


def exact(instance: Instance, options: SearchOptions = SearchOptions()) -> Candidate:  # noqa: B008 - immutable
    """Return a plan and a proven bound."""
    planner = Planner(instance, options)
    planner.round_relaxation()
    planner.tabu_search(300_000)
    planner.close_gap(work=1.0, rounds=40)
    planner.solve_cp_model(work=20.0)
    planner.close_gap(work=10.0, rounds=200)
    planner.solve_cp_model(work=40.0)
    work = 80.0
    while not planner.done and planner.deadline.limited:
        planner.close_gap(work=work, rounds=1000)
        planner.solve_cp_model(work=work)
        work *= 2
    return planner.candidate()
