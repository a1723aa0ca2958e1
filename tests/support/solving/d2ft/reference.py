"""The contract of kind "d2ft", checked in fractions of the decimals as written; shares no code with the solvers."""

from collections.abc import Iterable, Iterator
from fractions import Fraction
from itertools import combinations, product

from fleetune.solving.d2ft.problem import Problem, Solution

FULL, FORWARD, SHORTCUT = 1, 2, 3
Row = tuple[int, ...]


def exact(number: float) -> Fraction:
    """Return the shortest decimal as a fraction."""
    return Fraction(repr(float(number)))


def of(row: Row, operation: int) -> list[int]:
    """Return the micro-batches with that operation."""
    return [i for i, one in enumerate(row) if one == operation]


def worth(scores: Iterable[float], chosen: Iterable[int]) -> Fraction:
    """Return the sum of scores."""
    values = list(scores)
    return sum((exact(values[i]) for i in chosen), Fraction(0))


def full_cost(problem: Problem, k: int) -> Fraction:
    """Return the cost of training a micro-batch."""
    return exact(problem.forward_cost[k]) + exact(problem.backward_cost[k])


def subsets(things: Iterable[int], cost: Fraction, capacity: Fraction) -> Iterator[tuple[int, ...]]:
    """Yield all subsets that fit."""
    listed = list(things)
    for size in range(len(listed) + 1):
        if size * cost <= capacity:
            yield from combinations(listed, size)


def joint_value(problem: Problem, k: int, row: Row) -> tuple[Fraction, ...]:
    """Return the objective of `joint`; the larger tuple is better."""
    backward, forward = (
        worth(problem.backward_scores[k], of(row, FULL)),
        worth(problem.forward_scores[k], of(row, FORWARD)),
    )
    if problem.forward_weight is None:
        return backward, forward
    return (backward + exact(problem.forward_weight) * forward,)


def best_joint(problem: Problem, k: int) -> list[Row]:
    """Return the best of all 3^N rows that fit."""
    assert problem.capacity is not None
    cost = {FULL: full_cost(problem, k), FORWARD: exact(problem.forward_cost[k]), SHORTCUT: Fraction(0)}
    size, room = len(problem.backward_scores[0]), exact(problem.capacity[k])
    fit = [row for row in product(cost, repeat=size) if sum(cost[one] for one in row) <= room]
    most = max(joint_value(problem, k, row) for row in fit)
    return [row for row in fit if joint_value(problem, k, row) == most]


def check(problem: Problem, plan: Solution) -> None:
    """Assert shape, budgets, and every number of the plan."""
    size = len(problem.backward_scores[0])
    assert [len(row) for row in plan.table] == [size] * len(problem.backward_scores)
    assert {one for row in plan.table for one in row} <= {FULL, FORWARD, SHORTCUT}
    within = [_within(problem, plan, k) for k in range(len(plan.table))]
    assert plan.feasible == (not plan.reason) == all(within)
    rows = list(enumerate(plan.table))
    backward = sum(worth(problem.backward_scores[k], of(row, FULL)) for k, row in rows)
    forward = sum(worth(problem.forward_scores[k], of(row, FORWARD)) for k, row in rows)
    assert close(plan.forward_objective, forward)
    weight = problem.forward_weight if plan.method == "joint" else None
    assert close(plan.objective, backward + exact(weight or 0) * forward)
    assert plan.upper_bound is None or plan.upper_bound >= plan.objective
    trained = {i for row in plan.table for i in of(row, FULL)}
    assert plan.untrained_micro_batches == size - len(trained)
    shares = [_share(problem, k, row) for k, row in rows]
    mean = sum(shares) / len(shares)
    variance = sum((share - mean) ** 2 for share in shares) / len(shares)
    assert close(plan.workload_variance, variance)
    assert (plan.workload_variance == 0) == (variance == 0)


def close(number: float, truth: Fraction | int) -> bool:
    """Return True if equal up to rounding."""
    return abs(exact(number) - truth) <= max(abs(truth), 1) * Fraction(1, 10**12)


def _within(problem: Problem, plan: Solution, k: int) -> bool:
    fulls, forwards = len(of(plan.table[k], FULL)), len(of(plan.table[k], FORWARD))
    full, forward = fulls * full_cost(problem, k), forwards * exact(problem.forward_cost[k])
    if plan.method == "joint":
        assert problem.capacity is not None
        return full + forward <= exact(problem.capacity[k])
    return full <= exact(problem.full_capacity[k]) and forward <= exact(problem.forward_capacity[k])


def _share(problem: Problem, k: int, row: Row) -> Fraction:
    whole = len(row) * full_cost(problem, k)
    used = len(of(row, FULL)) * full_cost(problem, k) + len(of(row, FORWARD)) * exact(problem.forward_cost[k])
    return used / whole if whole else Fraction(0)
