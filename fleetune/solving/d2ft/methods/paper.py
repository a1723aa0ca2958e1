"""The paper's method, D2FT (Ding and others, 2025): two knapsacks per subnet; and its baselines.

Eq. (7) and (8), Algorithms 1 and 2: the outer knapsack maximises backward scores within full_capacity at forward_cost +
backward_cost each, the inner one, for running forward only, forward scores within forward_capacity at forward_cost
each. They are independent, and full wins where both chose a micro-batch. Unlike Algorithm 2, which never takes a score
of 0, budgets are used up for the sake of balance. Ties: see `ties`; the inner knapsack prefers what the outer one did
not take.

bilevel-disjoint: the inner knapsack chooses among what the outer one left. In Algorithm 1 a micro-batch that both chose
costs the inner one a place, so that devices with equal budgets do unequal work; here they do the same, and the workload
variance is 0.

The knapsacks are exact: greedy for equal costs, a dynamic program over non-dominated (cost, value) pairs for others.
Source: Nemhauser and Ullmann, Discrete Dynamic Programming and Capital Allocation, Management Science 15, 1969: of all
subsets of the first items only the non-dominated ones matter, so there are never more than capacities in a table (the
paper's Algorithm 2), and mostly few (Beier and Vöcking, STOC 2003). Subsets whose fractional upper bound (Dantzig) is
below the best known value are dropped.

The baselines are those of Section III-A: random choice and dynamic pruning. Pruned subnets train nothing, the others
everything; only the total of the budgets is kept.

random: "randomly selects micro-batches for each subnet". Here every subnet keeps to its own budgets, so that its
imbalance is 0; the 0.23 of the paper's Table I results from operations drawn without regard to the subnet.

magnitude (`DPruning M`), after Lin, Stich, Barba, Dmitriev, Jaggi: Dynamic Model Pruning with Feedback (ICLR 2020), per
subnet and not per weight. Call it anew every 16 iterations, as the paper does.

magnitude-gradient (`DPruning M/G`), after Sokar, Atashgahi, Pechenizkiy, Mocanu: Where to Pay Attention in Sparse
Training for Feature Selection? (NeurIPS 2022): "an importance score derived from batch gradients and weight
magnitudes". The paper does not say how the two are combined: here they are multiplied, which needs no scale.
"""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from fleetune.arrays import Bools, Floats, Ints
from fleetune.errors import Refused
from fleetune.solving.d2ft.instance import FULL, SHORTCUT, Cost, Instance, Table, to_integers, to_table
from fleetune.solving.d2ft.problem import Problem
from fleetune.solving.d2ft.ties import OptimalChoices, cover_micro_batches, spread_forwards, top_choices
from fleetune.solving.validation import MAX_WHOLE

SLACK = 1e-12
"""Relative difference of sums of the same numbers in another order."""


def bilevel(instance: Instance) -> Table:
    """Return the merged table of both knapsacks."""
    full = outer_knapsacks(instance)
    inner = solve_knapsacks(
        instance.forward,
        instance.forward_counts,
        [(one.forward_cost, one.forward_capacity) for one in instance.budgets],
    )
    return to_table(full, spread_forwards(inner, full.sum(axis=0), full))


def outer_knapsacks(instance: Instance) -> Bools:
    """Return the choice of the outer knapsacks, [subnet, micro-batch]."""
    return cover_micro_batches(
        solve_knapsacks(
            instance.backward, instance.full_counts, [(one.full_cost, one.full_capacity) for one in instance.budgets]
        )
    )


def inner_knapsacks(instance: Instance, full: Bools) -> Bools:
    """Return the choice of the inner knapsacks among what the outer ones left."""
    counts = np.minimum(instance.forward_counts, instance.micro_batches - full.sum(axis=1))
    scores = np.where(full, -np.inf, instance.forward)
    inner = solve_knapsacks(scores, counts, [(one.forward_cost, one.forward_capacity) for one in instance.budgets])
    return spread_forwards(inner, full.sum(axis=0), full)


def bilevel_disjoint(instance: Instance) -> Table:
    """Return the table of both knapsacks, which share no micro-batch."""
    full = outer_knapsacks(instance)
    return to_table(full, inner_knapsacks(instance, full))


def solve_knapsack(values: Sequence[float] | Floats, costs: Sequence[int], capacity: int) -> Bools:
    """Return a mask of the items with the largest value within the capacity; costs are integers from 0.

    Items of cost 0 are always taken; of identical items the first. Values are at least 0. Refuses costs without a
    common divisor that brings them below 2^62.
    """
    worth = np.asarray(values, np.float64)
    chosen = np.array([cost == 0 for cost in costs], bool)
    items = np.array([i for i, cost in enumerate(costs) if 0 < cost <= capacity], np.int64)
    if not len(items):
        return chosen
    divisor = math.gcd(*(costs[i] for i in items))
    whole, room = [costs[i] // divisor for i in items], capacity // divisor
    if sum(whole) <= room:
        chosen[items] = True
        return chosen
    if room > MAX_WHOLE:
        raise Refused(
            f"costs: from {min(whole)} to {max(whole)} in their common unit they cannot be counted; round them"
        )
    order = np.argsort(-worth[items] / np.array(whole, np.float64), kind="stable")
    taken = _dynamic_program(worth[items][order], np.array(whole, np.int64)[order], room)
    chosen[items[order[taken]]] = True
    return chosen


def _dynamic_program(values: Floats, costs: NDArray[np.int64], room: int) -> list[int]:
    """Return positions of an optimal subset of items that are ordered by descending value per cost and fit alone."""
    least = _greedy_value(values, costs, room)
    spent, gained = np.zeros(1, np.int64), np.zeros(1)
    history: list[tuple[Bools, NDArray[np.int64]]] = []
    for i, (cost, value) in enumerate(zip(costs, values, strict=True)):
        fits = np.flatnonzero(spent <= room - cost)
        both = np.concatenate((spent, spent[fits] + cost))
        worth = np.concatenate((gained, gained[fits] + value))
        origin = np.concatenate((np.arange(len(spent)), fits))
        with_it = np.arange(len(both)) >= len(spent)
        order = np.lexsort((with_it, -worth, both))
        ahead = np.maximum.accumulate(worth[order])
        keep = np.concatenate(([True], worth[order][1:] > ahead[:-1]))
        keep &= worth[order] + _dantzig_bound(values[i + 1 :], costs[i + 1 :], room - both[order]) >= least * (
            1 - SLACK
        )
        order = order[keep]
        spent, gained = both[order], worth[order]
        history.append((with_it[order], origin[order]))
    at, taken = int(np.argmax(gained)), []
    for i in range(len(values) - 1, -1, -1):
        with_it, origin = history[i]
        if with_it[at]:
            taken.append(i)
        at = int(origin[at])
    return taken


def _greedy_value(values: Floats, costs: NDArray[np.int64], room: int) -> float:
    """Return the value of taking whatever still fits, in the order given."""
    total = 0.0
    for value, cost in zip(values, costs, strict=True):
        if cost <= room:
            total, room = total + float(value), room - int(cost)
    return total


def _dantzig_bound(values: Floats, costs: NDArray[np.int64], rooms: NDArray[np.int64]) -> Floats:
    """Return [room] Dantzig's bound for items ordered by descending value per cost.

    Computed in floating point, because sums of costs may exceed 64 bits: the error is a rounding of the bound itself.
    """
    if not len(values):
        return np.zeros(len(rooms))
    ends = np.concatenate(([0.0], np.cumsum(costs, dtype=np.float64)))
    worth = np.concatenate(([0.0], np.cumsum(values)))
    whole = np.searchsorted(ends, rooms, side="right") - 1
    inside = np.minimum(whole, len(values) - 1)
    part = np.where(whole < len(values), (rooms - ends[whole]) * (values[inside] / costs[inside]), 0.0)
    return worth[whole] + part


def solve_knapsacks(scores: Floats, counts: Ints, knapsacks: Sequence[tuple[Cost, int]]) -> OptimalChoices:
    """Return the optimal choices of every subnet; `counts` of its micro-batches fit if costs are uniform.

    knapsacks: [subnet], cost and capacity. A score of -inf excludes. If costs differ, one optimal choice is returned:
    equal scores of other costs are no ties.
    """
    unequal = [k for k, (cost, _) in enumerate(knapsacks) if not isinstance(cost, int)]
    if not unequal:
        return top_choices(scores, counts)
    counts = counts.copy()
    counts[unequal] = 0
    choices = top_choices(scores, counts)
    for k in unequal:
        cost, capacity = knapsacks[k]
        assert not isinstance(cost, int)
        allowed = np.flatnonzero(np.isfinite(scores[k]))
        chosen = allowed[solve_knapsack(scores[k][allowed], [cost[i] for i in allowed], capacity)]
        choices.must[k, chosen] = choices.may[k, chosen] = True
        counts[k] = len(chosen)
    return choices


def random(instance: Instance, seed: int) -> Table:
    """Return a random table by seed."""
    draws = np.random.default_rng(seed).random(instance.backward.shape)
    full, forward = np.zeros(draws.shape, bool), np.zeros(draws.shape, bool)
    for k, (budget, order) in enumerate(zip(instance.budgets, np.argsort(draws, axis=1, kind="stable"), strict=True)):
        fulls = _leading(budget.full_cost, budget.full_capacity, order.tolist())
        full[k, fulls] = True
        rest = [i for i in order.tolist() if not full[k, i]]
        forward[k, _leading(budget.forward_cost, budget.forward_capacity, rest)] = True
    return to_table(full, forward)


def _leading(cost: Cost, capacity: int, order: list[int]) -> list[int]:
    """Return the micro-batches of the order that still fit when their turn comes."""
    taken = []
    for i in order:
        one = cost if isinstance(cost, int) else cost[i]
        if one <= capacity:
            taken.append(i)
            capacity -= one
    return taken


def magnitude(instance: Instance, problem: Problem) -> Table:
    """Return the pruned table; raises Refused without weight_magnitude."""
    if problem.weight_magnitude is None:
        raise Refused("weight_magnitude: method magnitude needs this key; give one number for each subnet")
    return pruned(instance, problem, to_integers(problem.weight_magnitude))


def magnitude_gradient(instance: Instance, problem: Problem) -> Table:
    """Return the pruned table; raises Refused without weight_magnitude or gradient_magnitude."""
    for key in ("weight_magnitude", "gradient_magnitude"):
        if getattr(problem, key) is None:
            raise Refused(f"{key}: method magnitude-gradient needs this key; give one number for each subnet")
    weights, gradients = to_integers(problem.weight_magnitude or ()), to_integers(problem.gradient_magnitude or ())
    return pruned(instance, problem, [w * g for w, g in zip(weights, gradients, strict=True)])


def pruned(instance: Instance, problem: Problem, importance: Sequence[int]) -> Table:
    """Let subnets train all micro-batches in descending importance, within the total compute of bilevel-disjoint.

    Ties go to the first subnet; each ignores its own budget.
    """
    n = instance.micro_batches
    costs = to_integers([*problem.forward_cost, *problem.backward_cost])
    ahead, back = costs[: instance.subnets], costs[instance.subnets :]
    spending = bilevel_disjoint(instance)
    fulls, active = (spending == FULL).sum(axis=1).tolist(), (spending != SHORTCUT).sum(axis=1).tolist()
    total = sum(f * x + b * y for f, b, x, y in zip(ahead, back, active, fulls, strict=True))
    table = np.full((instance.subnets, n), SHORTCUT)
    for k in sorted(range(instance.subnets), key=lambda k: (-importance[k], k)):
        total -= n * (ahead[k] + back[k])
        if total < 0:
            break
        table[k] = FULL
    return table
