"""A problem of kind "split" solved by a method's name."""

import time
from collections.abc import Iterable, Sequence
from importlib import import_module

from fleetune.errors import Refused
from fleetune.solving.split.bound import quick_bound
from fleetune.solving.split.case import Case
from fleetune.solving.split.draft import Draft, Effort
from fleetune.solving.split.methods import SUMMARIES
from fleetune.solving.split.problem import Problem
from fleetune.solving.split.schedule import Row, makespan, merged, verify
from fleetune.solving.split.shortage import prove_room
from fleetune.solving.split.solution import DIRECTIONS, Direction, Piece, Solution
from fleetune.solving.split.watch import Watch


def solve(problem: Problem, *, method: str = "auto", time_limit_s: float | None = None, seed: int = 0) -> Solution:
    """A plan by one of the methods.

    time_limit_s: of methods that search; None: a fixed amount of work. Raises Refused for an unknown method, and for
    `admm` where tasks may not be interrupted; Infeasible names the client or helper that lacks memory or links;
    TryAgain where time ended before any assignment was known to fit.
    """
    if method not in SUMMARIES:
        raise Refused(f"method: {method!r} is not known; allowed are {', '.join(SUMMARIES)}")
    if method == "admm" and not problem.preemptive:
        raise Refused(
            "method admm: its schedules interrupt tasks, and the problem says preemptive false; "
            "take auto, exact, balanced-greedy or random-fcfs, or set preemptive to true"
        )
    started, watch = time.perf_counter(), Watch(time_limit_s)
    case = Case.of(problem)
    placed = prove_room(case, problem, watch)
    planner = import_module(f"fleetune.solving.split.methods.{method.replace('-', '_')}")
    draft = Draft(*planner.plan(case, Effort(seed, watch.left_s() if watch.limited else None, placed)))
    helper, rows = tuple(map(int, draft.helper)), in_order(draft.helper, draft.rows)
    verify(case, helper, rows)
    bound = draft.lower_bound if draft.lower_bound is not None else quick_bound(case, watch)
    return Solution(
        method=method,
        objective=makespan(case, helper, rows),
        lower_bound=int(bound),
        solve_s=time.perf_counter() - started,
        deterministic=draft.deterministic,
        helper=helper,
        schedule=tuple(
            Piece(client=r.client, direction=DIRECTIONS[r.direction], start=r.start, end=r.end) for r in rows
        ),
        order=order(case.helpers, helper, rows),
    )


def in_order(helper: Sequence[int], rows: Iterable[Row]) -> list[Row]:
    """Rows of plain integers by start, then helper, then client; those of one task that abut are one."""
    plain = [Row(*map(int, row)) for row in rows]
    return sorted(merged(plain), key=lambda row: (row.start, helper[row.client], row))


def order(helpers: int, helper: Sequence[int], rows: Iterable[Row]) -> tuple[tuple[tuple[int, Direction], ...], ...]:
    """Of each helper, its tasks by the start of their first pieces; `rows` as `in_order` gives them.

    For running without a clock: a helper takes its tasks one after another in this order, each as soon as its input is
    there and the one before it is done. It never waits for what comes later in it.
    """
    found: list[dict[tuple[int, Direction], None]] = [{} for _ in range(helpers)]
    for row in rows:
        found[helper[row.client]].setdefault((row.client, DIRECTIONS[row.direction]))
    return tuple(map(tuple, found))
