"""Dynamic pruning: whole subnets train everything, the others nothing; only the total of the budgets is kept to."""

from collections.abc import Sequence

import numpy as np

from fleetune.solving.d2ft.case import FULL, SHORTCUT, Case, Table
from fleetune.solving.d2ft.exact import scaled
from fleetune.solving.d2ft.methods import bilevel_disjoint
from fleetune.solving.d2ft.problem import Problem


def pruned(case: Case, problem: Problem, importance: Sequence[int]) -> Table:
    """Subnets in descending importance, the first of equals first, as long as the compute that bilevel-disjoint
    spends holds them; each then trains all micro-batches, whatever its own budget."""
    n = case.micro_batches
    costs = scaled([*problem.forward_cost, *problem.backward_cost])
    ahead, back = costs[: case.subnets], costs[case.subnets :]
    spending = bilevel_disjoint.plan(case)
    fulls, active = (spending == FULL).sum(axis=1).tolist(), (spending != SHORTCUT).sum(axis=1).tolist()
    total = sum(f * x + b * y for f, b, x, y in zip(ahead, back, active, fulls, strict=True))
    table = np.full((case.subnets, n), SHORTCUT)
    for k in sorted(range(case.subnets), key=lambda k: (-importance[k], k)):
        total -= n * (ahead[k] + back[k])
        if total < 0:
            break
        table[k] = FULL
    return table
