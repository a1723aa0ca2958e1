"""Solver of kind "split": dispatch by method name."""

from collections.abc import Callable, Iterable, Sequence

from fleetune.errors import Refused
from fleetune.solving.limits import Deadline
from fleetune.solving.split.assignment import require_assignment
from fleetune.solving.split.bounds import quick_bound
from fleetune.solving.split.instance import Instance
from fleetune.solving.split.methods import SUMMARIES, admm
from fleetune.solving.split.methods.baselines import balanced_greedy, random_fcfs
from fleetune.solving.split.methods.search import auto, exact
from fleetune.solving.split.problem import DIRECTIONS, Direction, Piece, Problem, Solution
from fleetune.solving.split.schedule import Candidate, SearchOptions, TaskRow, makespan, merged, verify
from fleetune.solving.validation import validate_choice

METHODS: dict[str, Callable[[Instance, SearchOptions], Candidate]] = {
    "auto": auto,
    "exact": exact,
    "admm": admm.plan,
    "balanced-greedy": balanced_greedy,
    "random-fcfs": random_fcfs,
}


def solve(problem: Problem, *, method: str = "auto", time_limit_s: float | None = None, seed: int = 0) -> Solution:
    """Return a plan by one of the methods.

    time_limit_s: for methods that search; None: a fixed amount of work. Raises Refused for an unknown method, and for
    `admm` if the problem is not preemptive; Infeasible, naming the client or helper that lacks memory or links;
    TryAgain if time runs out before an assignment is known to fit.
    """
    validate_choice("method", method, SUMMARIES)
    if method == "admm" and not problem.preemptive:
        raise Refused(
            "method admm: its schedules interrupt tasks, and the problem says preemptive false; "
            "take auto, exact, balanced-greedy or random-fcfs, or set preemptive to true"
        )
    deadline = Deadline(time_limit_s)
    instance = Instance.from_problem(problem)
    feasible = require_assignment(instance, problem, deadline)
    candidate = METHODS[method](
        instance, SearchOptions(seed, deadline.left_s() if deadline.limited else None, feasible)
    )
    helper, rows = tuple(map(int, candidate.helper)), in_order(candidate.helper, candidate.rows)
    verify(instance, helper, rows)
    bound = candidate.lower_bound if candidate.lower_bound is not None else quick_bound(instance, deadline)
    return Solution(
        method=method,
        objective=makespan(instance, helper, rows),
        lower_bound=int(bound),
        solve_s=deadline.elapsed_s(),
        deterministic=candidate.deterministic,
        helper=helper,
        schedule=tuple(
            Piece(client=r.client, direction=DIRECTIONS[r.direction], start=r.start, end=r.end) for r in rows
        ),
        order=order(instance.helpers, helper, rows),
    )


def in_order(helper: Sequence[int], rows: Iterable[TaskRow]) -> list[TaskRow]:
    """Return rows of plain integers by start, helper and client, with adjacent pieces of a task joined."""
    plain = [TaskRow(*map(int, row)) for row in rows]
    return sorted(merged(plain), key=lambda row: (row.start, helper[row.client], row))


def order(
    helpers: int, helper: Sequence[int], rows: Iterable[TaskRow]
) -> tuple[tuple[tuple[int, Direction], ...], ...]:
    """Return [helper] its tasks by first start; rows: as `in_order` returns them.

    Without a clock, a helper runs its tasks in this order, each as soon as its input is there and the one before it is
    done. It never waits for a later one.
    """
    found: list[dict[tuple[int, Direction], None]] = [{} for _ in range(helpers)]
    for row in rows:
        found[helper[row.client]].setdefault((row.client, DIRECTIONS[row.direction]))
    return tuple(map(tuple, found))
