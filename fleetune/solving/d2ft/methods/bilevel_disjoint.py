"""The paper's two knapsacks, the inner one among what the outer one left.

After D2FT (Ding and others, 2025), Algorithm 1, where a micro-batch that both knapsacks chose costs the inner one a
place: devices with equal budgets then do unequal work. Here they do the same, and the workload variance is 0.
"""

from fleetune.solving.d2ft.case import Case, Table, merged
from fleetune.solving.d2ft.methods.bilevel import left, trained


def plan(case: Case) -> Table:
    """The table of both knapsacks, which share no micro-batch."""
    full = trained(case)
    return merged(full, left(case, full))
