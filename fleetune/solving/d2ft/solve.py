"""A problem of kind "d2ft" solved by a method's name."""

import time
from typing import Any

from fleetune.errors import Refused
from fleetune.solving.d2ft.case import FORWARD_ONLY, FULL, Case, Table
from fleetune.solving.d2ft.measures import over_budget, total, untrained, weighted, workload_variance
from fleetune.solving.d2ft.methods import (
    SUMMARIES,
    bilevel,
    bilevel_disjoint,
    joint,
    magnitude,
    magnitude_gradient,
    random,
)
from fleetune.solving.d2ft.problem import Problem
from fleetune.solving.d2ft.solution import Solution


def solve(problem: Problem, *, method: str = "bilevel", seed: int = 0) -> Solution:
    """A plan by one of the methods; the seed is `random`'s alone.

    Refused: an unknown method, or one that needs a key which the problem lacks.
    """
    if method not in SUMMARIES:
        raise Refused(f"method: {method!r} is not known; allowed are {', '.join(SUMMARIES)}")
    started = time.perf_counter()
    case = Case.of(problem)
    table = _table(case, problem, method, seed)
    weight = problem.forward_weight if method == "joint" else None
    objective = total(case.backward, table, FULL) if weight is None else weighted(case, table, weight)
    lack = "" if method == "joint" else over_budget(case, table)
    bound: float | None = objective
    if method in ("random", "magnitude", "magnitude-gradient"):
        bound = None if lack else total(case.backward, bilevel.plan(case), FULL)
    found: dict[str, Any] = {
        "method": method,
        "feasible": not lack,
        "reason": lack,
        "objective": objective,
        "upper_bound": bound,
        "table": tuple(map(tuple, table.tolist())),
        "forward_objective": total(case.forward, table, FORWARD_ONLY),
        "workload_variance": workload_variance(case, table),
        "untrained_micro_batches": untrained(table),
    }
    return Solution(**found, solve_s=time.perf_counter() - started)


def _table(case: Case, problem: Problem, method: str, seed: int) -> Table:
    if method == "joint":
        return joint.plan(case, problem.forward_weight)
    if method == "random":
        return random.plan(case, seed)
    if method == "magnitude":
        return magnitude.plan(case, problem)
    if method == "magnitude-gradient":
        return magnitude_gradient.plan(case, problem)
    return bilevel.plan(case) if method == "bilevel" else bilevel_disjoint.plan(case)
