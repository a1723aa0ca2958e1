"""The paper's method: an outer knapsack for what is trained, an inner one for what is run forward only.

D2FT (Ding and others, 2025), eq. (7) and (8), Algorithms 1 and 2: per subnet, the outer knapsack takes the largest sum
of backward scores within full_capacity at forward_cost + backward_cost each, the inner one the largest sum of forward
scores within forward_capacity at forward_cost each; both know nothing of each other, and where both chose a
micro-batch, full wins. Unlike Algorithm 2, which never takes a score of 0, budgets are used up: they are there for the
balance. Ties: see `cover`; the inner knapsack prefers what the outer one did not take.
"""

import numpy as np

from fleetune.solving.d2ft.case import Bools, Case, Table, merged
from fleetune.solving.d2ft.cover import covering, spreading
from fleetune.solving.d2ft.selection import selection


def plan(case: Case) -> Table:
    """The table of both knapsacks, merged."""
    full = trained(case)
    inner = selection(case.forward, case.forwards, [(one.forward_cost, one.forward_capacity) for one in case.budgets])
    return merged(full, spreading(inner, full.sum(axis=0), full))


def trained(case: Case) -> Bools:
    """What the outer knapsacks choose [subnet, micro-batch]."""
    return covering(selection(case.backward, case.fulls, [(one.full_cost, one.full_capacity) for one in case.budgets]))


def left(case: Case, full: Bools) -> Bools:
    """What inner knapsacks choose among what the outer ones left."""
    counts = np.minimum(case.forwards, case.micro_batches - full.sum(axis=1))
    scores = np.where(full, -np.inf, case.forward)
    inner = selection(scores, counts, [(one.forward_cost, one.forward_capacity) for one in case.budgets])
    return spreading(inner, full.sum(axis=0), full)
