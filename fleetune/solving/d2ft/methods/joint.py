"""joint: both operations within one capacity per subnet, exactly.

D2FT (Ding and others, 2025), eq. (6), which the paper replaces by two knapsacks because the scales of the two scores
are hard to weigh. Without a weight the objective is lexicographic: backward scores first, then forward scores (the
limit of the paper's `Max` scaler, Table X). With a weight it is the paper's `Scaler`, solved exactly.

The best sum V(f, o) for f trained and o forward-only micro-batches is concave (the value of a transportation problem),
and for every f only one o matters: the most that the remaining capacity holds. Small problems: V for all sizes at once,
from tables of the largest sums before and behind every position of the order (see `transportation`), all subnets
together. Large ones: cutting planes (Kelley, J. SIAM 8, 1960) over f. The prices (m, n) at one f bound V at every other
by f m + o n + the gain of all micro-batches at these prices; the next f is where the least of these bounds is largest,
until it is reached. The bounds hold at the integers o(f), so that unused capacity is no gap between bound and plan.
"""

from typing import NamedTuple

import numpy as np

from fleetune.arrays import Bools, Floats, Ints
from fleetune.errors import Refused
from fleetune.solving.d2ft.instance import Instance, Table, max_count, to_table
from fleetune.solving.d2ft.ties import OptimalChoices, cover_micro_batches, spread_forwards, tightened, top_choices
from fleetune.solving.d2ft.transportation import (
    Scores,
    all_optima,
    by_advantage,
    dual_prices,
    mask_of_largest,
    sets_at_split,
    split_position,
)

MAX_TABLE_SIZE = 64
"""Micro-batches up to which tables are faster."""
MAX_TABLE_CELLS = 2**21
"""Limit of the cells of such tables, over all subnets solved at a time."""
ROUNDING = 2.0**-46
"""Relative to the best sum: bounds this close count as reached."""


class JointBudget(NamedTuple):
    """Costs and capacity of one subnet in one integer unit, equal for all its micro-batches."""

    full_cost: int
    forward_cost: int
    capacity: int


def feasible_counts(budget: JointBudget, micro_batches: int) -> list[int]:
    """Return [trained] the most micro-batches that can run forward only beside each feasible number of trained ones."""
    full_cost, forward_cost, capacity = budget
    most = max_count(full_cost, capacity, micro_batches)
    return [max_count(forward_cost, capacity - f * full_cost, micro_batches - f) for f in range(most + 1)]


class JointCounts(NamedTuple):
    """Sizes of both sets [subnet]."""

    fulls: Ints
    forwards: Ints
    splits: Ints
    """Position that splits the micro-batches by descending advantage of training."""


class OptimalSets(NamedTuple):
    """Optimal sets [subnet, micro-batch], and scores at which they are optimal."""

    scores: Scores
    full: Bools
    forward: Bools


class SplitValue(NamedTuple):
    """Sum of the scores of the best sets at a split position, and their dual prices."""

    value: float
    full_price: float
    forward_price: float


def best_counts(scores: Scores, forwards: list[list[int]]) -> JointCounts:
    """Return the best sizes of both sets of every subnet.

    forwards: [subnet][trained], the most forward-only beside each feasible number of trained ones.
    """
    subnets, size = scores.full.shape
    order = by_advantage(scores)
    a, w = (np.take_along_axis(one, order, axis=1) for one in scores)
    if size > MAX_TABLE_SIZE:
        found = [_counts_by_cutting_planes(a[k], w[k], np.array(forwards[k])) for k in range(subnets)]
    else:
        step = max(1, MAX_TABLE_CELLS // (size + 1) ** 2)
        parts = [slice(k, k + step) for k in range(0, subnets, step)]
        found = [row for part in parts for row in _counts_by_tables(a[part], w[part], forwards[part])]
    fulls, splits = (np.array(column) for column in zip(*found, strict=True))
    return JointCounts(fulls, np.array([row[f] for row, f in zip(forwards, fulls, strict=True)]), splits)


def _counts_by_tables(a: Floats, w: Floats, forwards: list[list[int]]) -> list[tuple[int, int]]:
    """Return (trained, split) of every subnet; ties to the most trained and the last position."""
    subnets, size = a.shape
    before = _largest_sums(a)
    behind = _largest_sums(w[:, ::-1])[::-1]
    others = np.full((subnets, size + 1), -1)
    for k, row in enumerate(forwards):
        others[k, : len(row)] = row
    total = before + np.take_along_axis(behind, np.maximum(others, 0)[None], axis=2)
    total[:, others < 0] = -np.inf
    at_best = total.max(axis=0)
    fulls = size - np.argmax(at_best[:, ::-1], axis=1)
    of_best = np.take_along_axis(total, fulls[None, :, None], axis=2)[::-1, :, 0]
    return list(zip(fulls.tolist(), (size - np.argmax(of_best, axis=0)).tolist(), strict=True))


def _largest_sums(values: Floats) -> Floats:
    """Return [k, subnet, n] the sum of the n largest of the first k, -inf if n > k."""
    subnets, size = values.shape
    found = np.full((size + 1, subnets, size + 1), -np.inf)
    found[:, :, 0] = 0.0
    for k in range(size):
        np.maximum(found[k, :, 1:], found[k, :, :-1] + values[:, k, None], out=found[k + 1, :, 1:])
    return found


def _counts_by_cutting_planes(a: Floats, w: Floats, forwards: Ints) -> tuple[int, int]:
    """Return (trained, split) of one subnet in descending order of a - w; forwards: [trained]."""
    trained = np.arange(len(forwards))
    bound = np.full(len(forwards), np.inf)
    value, answer = -np.inf, (0, 0)
    f = len(forwards) - 1
    while True:
        o = int(forwards[f])
        k = split_position(a, w, f, o)
        reached, m, n = _value_at_split(a, w, k, (f, o))
        if reached > value:
            value, answer = reached, (f, k)
        np.minimum(bound, trained * m + forwards * n + np.maximum(np.maximum(a - m, w - n), 0.0).sum(), out=bound)
        bound[f] = reached
        f = int(np.argmax(bound))
        if bound[f] <= value + ROUNDING * abs(value):
            return answer


def _value_at_split(a: Floats, w: Floats, k: int, counts: tuple[int, int]) -> SplitValue:
    index = np.arange(len(a))[None]
    full = mask_of_largest(np.where(index < k, a, -np.inf), np.array([counts[0]]))
    forward = mask_of_largest(np.where(index < k, -np.inf, w), np.array([counts[1]]))
    found = dual_prices(Scores(a[None], w[None]), full, forward)
    value = float(a[full[0]].sum() + w[forward[0]].sum())
    return SplitValue(value, float(found.full[0]), float(found.forward[0]))


def plan(instance: Instance, weight: float | None) -> Table:
    """Return the table with the largest weighted sum, or the lexicographic optimum if weight is None.

    Raises Refused for a subnet without a joint capacity, or whose micro-batches cost differently.
    """
    budgets = [_joint_budget(instance, k) for k in range(instance.subnets)]
    if weight is None:
        scores, full, forward = _lexicographic_optimum(instance, budgets)
    else:
        forwards = {budget: feasible_counts(budget, instance.micro_batches) for budget in set(budgets)}
        trains = np.array([len(forwards[budget]) > 1 for budget in budgets])
        # huge backward scores of subnets that cannot train would absorb their forward scores
        scores = Scores(np.where(trains[:, None], instance.backward, 0.0), weight * instance.forward)
        fulls, others, splits = best_counts(scores, [forwards[budget] for budget in budgets])
        full, forward = sets_at_split(scores, splits, fulls, others)
    optima = all_optima(scores, full, forward)
    full = cover_micro_batches(optima.full)
    must, may = optima.must_forward & ~full, optima.may_forward & ~full
    inner = tightened(OptimalChoices(must, may, forward.sum(axis=1)))
    return to_table(full, spread_forwards(inner, full.sum(axis=0), full))


def _joint_budget(instance: Instance, k: int) -> JointBudget:
    """Return the budget of one subnet; raises Refused if it has no joint capacity or its costs differ."""
    budget = instance.budgets[k]
    if budget.capacity is None:
        raise Refused("capacity: method joint needs this key; give one number for each subnet")
    if not isinstance(budget.full_cost, int) or not isinstance(budget.forward_cost, int):
        raise Refused(f"costs of subnet {k} differ between micro-batches; method joint takes one for all of them")
    return JointBudget(budget.full_cost, budget.forward_cost, budget.capacity)


def _lexicographic_optimum(instance: Instance, budgets: list[JointBudget]) -> OptimalSets:
    """Return one optimal plan and scores that describe it: inf for what must be trained, -inf for what must not, 0 for
    ties.

    A full that scores 0 is never made: it could only take capacity from forward-only ones.
    """
    size = instance.micro_batches
    most = np.array([max_count(budget.full_cost, budget.capacity, size) for budget in budgets])
    fulls = np.minimum(most, (instance.backward > 0).sum(axis=1))
    others = np.array(
        [
            max_count(budget.forward_cost, budget.capacity - f * budget.full_cost, size - f)
            for budget, f in zip(budgets, fulls.tolist(), strict=True)
        ]
    )
    outer = top_choices(instance.backward, fulls)
    scores = Scores(np.where(outer.must, np.inf, np.where(outer.may, 0.0, -np.inf)), instance.forward)
    full = mask_of_largest(np.where(outer.must, np.inf, np.where(outer.may, -instance.forward, -np.inf)), fulls)
    return OptimalSets(scores, full, mask_of_largest(np.where(full, -np.inf, instance.forward), others))
