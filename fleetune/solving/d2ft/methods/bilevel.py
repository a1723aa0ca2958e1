"""The paper's method: an outer knapsack for training and an inner one for running forward only.

D2FT (Ding and others, 2025), eq. (7) and (8), Algorithms 1 and 2: per subnet, the outer knapsack maximises backward
scores within full_capacity at forward_cost + backward_cost each, the inner one forward scores within forward_capacity
at forward_cost each. They are independent, and full wins where both chose a micro-batch. Unlike Algorithm 2, which
never takes a score of 0, budgets are used up for the sake of balance. Ties: see `ties`; the inner knapsack prefers what
the outer one did not take.

bilevel-disjoint: the inner knapsack chooses among what the outer one left. In Algorithm 1 a micro-batch that both chose
costs the inner one a place, so that devices with equal budgets do unequal work; here they do the same, and the workload
variance is 0.
"""

import numpy as np

from fleetune.solving.d2ft.instance import Bools, Instance, Table, to_table
from fleetune.solving.d2ft.knapsack import select
from fleetune.solving.d2ft.ties import cover_micro_batches, spread_forwards


def bilevel(instance: Instance) -> Table:
    """Return the merged table of both knapsacks."""
    full = outer_knapsacks(instance)
    inner = select(
        instance.forward, instance.forwards, [(one.forward_cost, one.forward_capacity) for one in instance.budgets]
    )
    return to_table(full, spread_forwards(inner, full.sum(axis=0), full))


def outer_knapsacks(instance: Instance) -> Bools:
    """Return the choice of the outer knapsacks, [subnet, micro-batch]."""
    return cover_micro_batches(
        select(instance.backward, instance.fulls, [(one.full_cost, one.full_capacity) for one in instance.budgets])
    )


def inner_knapsacks(instance: Instance, full: Bools) -> Bools:
    """Return the choice of the inner knapsacks among what the outer ones left."""
    counts = np.minimum(instance.forwards, instance.micro_batches - full.sum(axis=1))
    scores = np.where(full, -np.inf, instance.forward)
    inner = select(scores, counts, [(one.forward_cost, one.forward_capacity) for one in instance.budgets])
    return spread_forwards(inner, full.sum(axis=0), full)


def bilevel_disjoint(instance: Instance) -> Table:
    """Return the table of both knapsacks, which share no micro-batch."""
    full = outer_knapsacks(instance)
    return to_table(full, inner_knapsacks(instance, full))
