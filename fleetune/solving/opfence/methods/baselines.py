"""The paper's baselines (FusionLLM section 7.2): equal numbers of operators, or equal flops, per device.

Both ignore speeds, memory and links; the devices take runs of the topological order as they are listed.
"""

import numpy as np

from fleetune.solving.opfence.instance import Instance, Placement


def equal_modules(instance: Instance, seed: int) -> Placement:
    """Return equally long runs of the topological order; the first ones are longer by one if the division has a
    rest."""
    found = np.empty(instance.operators, np.int64)
    for device, run in enumerate(np.array_split(np.array(instance.order), instance.devices)):
        found[run] = device
    return found


def equal_compute(instance: Instance, seed: int) -> Placement:
    """Return runs of the topological order, cut where the prefix sum of flops is nearest to its equal share."""
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
