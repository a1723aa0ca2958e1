"""The baselines of D2FT (Ding and others, 2025), Section III-A: random choice and dynamic pruning.

random: "randomly selects micro-batches for each subnet". Here every subnet keeps to its own budgets, so that its
imbalance is 0; the 0.23 of the paper's Table I results from operations drawn without regard to the subnet.

magnitude (`DPruning M`), after Lin, Stich, Barba, Dmitriev, Jaggi: Dynamic Model Pruning with Feedback (ICLR 2020), per
subnet and not per weight. Call it anew every 16 iterations, as the paper does.

magnitude-gradient (`DPruning M/G`), after Sokar, Atashgahi, Pechenizkiy, Mocanu: Where to Pay Attention in Sparse
Training for Feature Selection? (NeurIPS 2022): "an importance score derived from batch gradients and weight
magnitudes". The paper does not say how the two are combined: here they are multiplied, which needs no scale.

Pruned subnets train nothing, the others everything; only the total of the budgets is kept.
"""

from collections.abc import Sequence

import numpy as np

from fleetune.errors import Refused
from fleetune.solving.d2ft.instance import FULL, SHORTCUT, Cost, Instance, Table, to_integers, to_table
from fleetune.solving.d2ft.methods.bilevel import bilevel_disjoint
from fleetune.solving.d2ft.problem import Problem


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
