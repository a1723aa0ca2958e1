"""Solver of kind "d2ft": dispatch by method name, and the measures of a table."""

import math
from fractions import Fraction
from typing import Any

import numpy as np

from fleetune.arrays import Floats
from fleetune.solving.d2ft.instance import FORWARD_ONLY, FULL, Cost, Instance, Table, total_cost
from fleetune.solving.d2ft.methods import SUMMARIES, joint
from fleetune.solving.d2ft.methods.paper import bilevel, bilevel_disjoint, magnitude, magnitude_gradient, random
from fleetune.solving.d2ft.problem import Problem, Solution
from fleetune.solving.limits import Deadline
from fleetune.solving.validation import validate_choice


def solve(problem: Problem, *, method: str = "bilevel", seed: int = 0) -> Solution:
    """Return a plan by one of the methods; only `random` uses the seed.

    Raises Refused for an unknown method, or one that needs a key which the problem lacks.
    """
    validate_choice("method", method, SUMMARIES)
    clock = Deadline()
    instance = Instance.from_problem(problem)
    table = _table(instance, problem, method, seed)
    weight = problem.forward_weight if method == "joint" else None
    objective = score_sum(instance.backward, table, FULL) if weight is None else weighted_score(instance, table, weight)
    lack = "" if method == "joint" else budget_violation(instance, table)
    bound: float | None = objective
    if method in ("random", "magnitude", "magnitude-gradient"):
        bound = None if lack else score_sum(instance.backward, bilevel(instance), FULL)
    found: dict[str, Any] = {
        "method": method,
        "feasible": not lack,
        "reason": lack,
        "objective": objective,
        "upper_bound": bound,
        "table": tuple(map(tuple, table.tolist())),
        "forward_objective": score_sum(instance.forward, table, FORWARD_ONLY),
        "workload_variance": workload_variance(instance, table),
        "untrained_micro_batches": untrained_count(table),
    }
    return Solution(**found, solve_s=clock.elapsed_s())


def _table(instance: Instance, problem: Problem, method: str, seed: int) -> Table:
    if method == "joint":
        return joint.plan(instance, problem.forward_weight)
    if method == "random":
        return random(instance, seed)
    if method == "magnitude":
        return magnitude(instance, problem)
    if method == "magnitude-gradient":
        return magnitude_gradient(instance, problem)
    return bilevel(instance) if method == "bilevel" else bilevel_disjoint(instance)


def score_sum(scores: Floats, table: Table, operation: int) -> float:
    """Return the exactly rounded sum of the scores of one operation."""
    return math.fsum(scores[table == operation].tolist())


def weighted_score(instance: Instance, table: Table, weight: float) -> float:
    """Return the backward scores of full plus the weighted forward scores of forward-only micro-batches."""
    parts = (instance.backward[table == FULL], weight * instance.forward[table == FORWARD_ONLY])
    return math.fsum(np.concatenate(parts).tolist())


def workload_variance(instance: Instance, table: Table) -> float:
    """Return the population variance over subnets of compute used / compute of all micro-batches full.

    0 if that compute costs nothing; exactly 0 if all subnets use the same share.
    """
    full, forward = table == FULL, table == FORWARD_ONLY
    known: dict[tuple[object, ...], Fraction] = {}
    shares = []
    for budget, fulls, forwards in zip(instance.budgets, full, forward, strict=True):
        alike = budget.uniform
        key = (
            (budget, int(fulls.sum()), int(forwards.sum())) if alike else (budget, *fulls.tolist(), *forwards.tolist())
        )
        if key not in known:
            known[key] = _share(budget.full_cost, budget.forward_cost, fulls.tolist(), forwards.tolist())
        shares.append(known[key])
    if len(set(shares)) == 1:
        return 0.0
    return float(np.var([float(share) for share in shares]))


def untrained_count(table: Table) -> int:
    """Return the number of micro-batches that no subnet trains fully."""
    return int((~(table == FULL).any(axis=0)).sum())


def budget_violation(instance: Instance, table: Table) -> str:
    """Name the first subnet that trains more than its full_capacity holds; empty if there is none."""
    for k, budget in enumerate(instance.budgets):
        row = (table[k] == FULL).tolist()
        used = total_cost(budget.full_cost, row)
        if used > budget.full_capacity:
            held = float(Fraction(budget.full_capacity, used) * sum(row))
            return f"subnet {k} trains {sum(row)} micro-batches and its full_capacity holds {held:.4g} of them"
    return ""


def _share(full_cost: Cost, forward_cost: Cost, fulls: list[bool], forwards: list[bool]) -> Fraction:
    whole = total_cost(full_cost, [True] * len(fulls))
    return Fraction(total_cost(full_cost, fulls) + total_cost(forward_cost, forwards), whole) if whole else Fraction(0)
