"""Any micro-batches, as many of both operations as the budgets allow.

D2FT (Ding and others, 2025), Section III-A, `Random`: "randomly selects micro-batches for each subnet", at the budgets
of the method it stands beside. Here every subnet keeps to its own, so that its imbalance is 0; the 0.23 of the paper's
Table I is what operations drawn without regard to the subnet come to.
"""

import numpy as np

from fleetune.solving.d2ft.budget import Cost
from fleetune.solving.d2ft.case import Case, Table, merged


def plan(case: Case, seed: int) -> Table:
    """A table by seed."""
    draws = np.random.default_rng(seed).random(case.backward.shape)
    full, forward = np.zeros(draws.shape, bool), np.zeros(draws.shape, bool)
    for k, (budget, order) in enumerate(zip(case.budgets, np.argsort(draws, axis=1, kind="stable"), strict=True)):
        fulls = _leading(budget.full_cost, budget.full_capacity, order.tolist())
        full[k, fulls] = True
        rest = [i for i in order.tolist() if not full[k, i]]
        forward[k, _leading(budget.forward_cost, budget.forward_capacity, rest)] = True
    return merged(full, forward)


def _leading(cost: Cost, capacity: int, order: list[int]) -> list[int]:
    """Those of the order that still fit when their turn comes."""
    taken = []
    for i in order:
        one = cost if isinstance(cost, int) else cost[i]
        if one <= capacity:
            taken.append(i)
            capacity -= one
    return taken
