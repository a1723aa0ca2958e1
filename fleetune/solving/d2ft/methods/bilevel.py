"""The paper's method: an outer knapsack for what is trained, an inner one for what is run forward only.

D2FT (Ding and others, 2025), eq. (7) and (8), Algorithms 1 and 2: per subnet, the outer knapsack takes the largest sum
of backward scores within full_capacity at forward_cost + backward_cost each, the inner one the largest sum of forward
scores within forward_capacity at forward_cost each; both know nothing of each other, and where both chose a
micro-batch, full wins. Unlike Algorithm 2, which never takes a score of 0, budgets are used up: they are there for the
balance. Ties: see `cover`; the inner knapsack prefers what the outer one did not take.

The paper's two knapsacks, the inner one among what the outer one left.

After D2FT (Ding and others, 2025), Algorithm 1, where a micro-batch that both knapsacks chose costs the inner one a
place: devices with equal budgets then do unequal work. Here they do the same, and the workload variance is 0.
"""

import numpy as np

from fleetune.solving.d2ft.instance import Bools, Instance, Table, to_table
from fleetune.solving.d2ft.knapsack import select
from fleetune.solving.d2ft.ties import cover_micro_batches, spread_forwards


def bilevel(instance: Instance) -> Table:
    """The table of both knapsacks, merged."""
    full = outer_knapsacks(instance)
    inner = select(
        instance.forward, instance.forwards, [(one.forward_cost, one.forward_capacity) for one in instance.budgets]
    )
    return to_table(full, spread_forwards(inner, full.sum(axis=0), full))


def outer_knapsacks(instance: Instance) -> Bools:
    """What the outer knapsacks choose [subnet, micro-batch]."""
    return cover_micro_batches(
        select(instance.backward, instance.fulls, [(one.full_cost, one.full_capacity) for one in instance.budgets])
    )


def inner_knapsacks(instance: Instance, full: Bools) -> Bools:
    """What inner knapsacks choose among what the outer ones left."""
    counts = np.minimum(instance.forwards, instance.micro_batches - full.sum(axis=1))
    scores = np.where(full, -np.inf, instance.forward)
    inner = select(scores, counts, [(one.forward_cost, one.forward_capacity) for one in instance.budgets])
    return spread_forwards(inner, full.sum(axis=0), full)


def bilevel_disjoint(instance: Instance) -> Table:
    """The table of both knapsacks, which share no micro-batch."""
    full = outer_knapsacks(instance)
    return to_table(full, inner_knapsacks(instance, full))
