"""The paper's scalable heuristic: J. Tirana et al., INFOCOM 2024, section VI, "balanced-greedy".

Step 1, in the order of the clients: each goes to the helper with the fewest clients among those that still have the
memory for it (and a link to it). Step 2: first come, first served, without interruptions. The paper does not say what
happens when no helper is left for a client; here the clients are then placed so that the fullest helper has the fewest.
"""

import numpy as np

from fleetune.solving.split.assignment import place, place_evenly
from fleetune.solving.split.case import Case
from fleetune.solving.split.dispatch import everywhere, first_come
from fleetune.solving.split.draft import Draft, Effort
from fleetune.solving.split.watch import Watch


def plan(case: Case, effort: Effort = Effort()) -> Draft:  # noqa: B008 - immutable
    """The heuristic's schedule; nothing in it is random, and a clock matters only where a helper has no room left."""
    watch = Watch(effort.time_limit_s)
    helper = balanced(case)
    deterministic = helper is not None or not watch.limited
    if helper is None:
        placed = place_evenly(case, watch.left_s()) or effort.placed or place(case)
        helper = None if placed is None else list(placed)
    assert helper is not None, "only asked where everyone fits"
    return Draft(helper, everywhere(case, helper, first_come), deterministic=deterministic)


def balanced(case: Case) -> list[int] | None:
    """Step 1: the helper of each client; None: some client found no helper with room. Ties go to the first helper."""
    left, load = case.helper_memory.copy(), np.zeros(case.helpers, np.int64)
    helper = []
    for j in range(case.clients):
        fitting = np.flatnonzero(case.linked[:, j] & (left >= case.client_memory[j]))
        if not fitting.size:
            return None
        i = int(fitting[np.argmin(load[fitting])])
        left[i] -= case.client_memory[j]
        load[i] += 1
        helper.append(i)
    return helper
