"""The paper's first baseline: every device gets as many operators (FusionLLM section 7.2).

Neither speeds, memories nor links are looked at: the devices take their runs as they are listed.

The paper's second baseline: every device gets as much compute (FusionLLM section 7.2: the modules are first
partitioned with balanced load, then each device is assigned one part).

Neither speeds, memories nor links are looked at: the devices take their runs as they are listed.
"""

import numpy as np

from fleetune.solving.opfence.instance import Instance, Placement


def equal_modules(instance: Instance, seed: int) -> Placement:
    """Runs of the topological order, the first ones longer by one where it does not come out even."""
    found = np.empty(instance.operators, np.int64)
    for device, run in enumerate(np.array_split(np.array(instance.order), instance.devices)):
        found[run] = device
    return found


def equal_compute(instance: Instance, seed: int) -> Placement:
    """Runs of the topological order, cut where the flops before come nearest to their equal share."""
    order = np.array(instance.order)
    before = np.concatenate([[0.0], np.cumsum(instance.flops[order])])
    if before[-1] == 0:
        return equal_modules(instance, seed)
    shares = before[-1] * np.arange(1, instance.devices) / instance.devices
    cuts = np.clip(np.searchsorted(before, shares), 1, instance.operators)
    cuts -= shares - before[cuts - 1] < before[cuts] - shares
    found = np.empty(instance.operators, np.int64)
    for device, run in enumerate(np.split(order, cuts)):
        found[run] = device
    return found
