"""The paper's second baseline: every device gets as much compute (FusionLLM section 7.2: the modules are first
partitioned with balanced load, then each device is assigned one part).

Neither speeds, memories nor links are looked at: the devices take their runs as they are listed.
"""

import numpy as np

from fleetune.solving.opfence.case import Case, Place
from fleetune.solving.opfence.methods import equal_modules


def plan(case: Case, seed: int) -> Place:
    """Runs of the topological order, cut where the flops before come nearest to their equal share."""
    order = np.array(case.order)
    before = np.concatenate([[0.0], np.cumsum(case.flops[order])])
    if before[-1] == 0:
        return equal_modules.plan(case, seed)
    shares = before[-1] * np.arange(1, case.devices) / case.devices
    cuts = np.clip(np.searchsorted(before, shares), 1, case.operators)
    cuts -= shares - before[cuts - 1] < before[cuts] - shares
    found = np.empty(case.operators, np.int64)
    for device, run in enumerate(np.split(order, cuts)):
        found[run] = device
    return found
