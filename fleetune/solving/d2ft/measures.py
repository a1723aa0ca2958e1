"""What a table comes to: sums of scores, balance, and what nobody trains."""

import math
from fractions import Fraction

import numpy as np

from fleetune.solving.d2ft.budget import Cost, spent
from fleetune.solving.d2ft.case import FORWARD_ONLY, FULL, Case, Table
from fleetune.solving.proofs import Floats


def total(scores: Floats, table: Table, operation: int) -> float:
    """The exactly rounded sum of the scores of one operation."""
    return math.fsum(scores[table == operation].tolist())


def weighted(case: Case, table: Table, weight: float) -> float:
    """Backward scores of the fulls and weighted forward scores of the forward-onlys."""
    parts = (case.backward[table == FULL], weight * case.forward[table == FORWARD_ONLY])
    return math.fsum(np.concatenate(parts).tolist())


def workload_variance(case: Case, table: Table) -> float:
    """Over the subnets, of compute used / compute of all micro-batches full (0 where that costs nothing); population.

    Exactly 0 where all use the same share.
    """
    full, forward = table == FULL, table == FORWARD_ONLY
    known: dict[tuple[object, ...], Fraction] = {}
    shares = []
    for budget, fulls, forwards in zip(case.budgets, full, forward, strict=True):
        alike = budget.alike
        key = (
            (budget, int(fulls.sum()), int(forwards.sum())) if alike else (budget, *fulls.tolist(), *forwards.tolist())
        )
        if key not in known:
            known[key] = _share(budget.full_cost, budget.forward_cost, fulls.tolist(), forwards.tolist())
        shares.append(known[key])
    if len(set(shares)) == 1:
        return 0.0
    return float(np.var([float(share) for share in shares]))


def untrained(table: Table) -> int:
    """How many micro-batches no subnet trains fully."""
    return int((~(table == FULL).any(axis=0)).sum())


def over_budget(case: Case, table: Table) -> str:
    """The first subnet that trains more than its full_capacity holds, in a sentence; empty where none does."""
    for k, budget in enumerate(case.budgets):
        row = (table[k] == FULL).tolist()
        used = spent(budget.full_cost, row)
        if used > budget.full_capacity:
            held = float(Fraction(budget.full_capacity, used) * sum(row))
            return f"subnet {k} trains {sum(row)} micro-batches and its full_capacity holds {held:.4g} of them"
    return ""


def _share(full_cost: Cost, forward_cost: Cost, fulls: list[bool], forwards: list[bool]) -> Fraction:
    whole = spent(full_cost, [True] * len(fulls))
    return Fraction(spent(full_cost, fulls) + spent(forward_cost, forwards), whole) if whole else Fraction(0)
