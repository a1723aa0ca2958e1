"""Brute force: every placement of a tiny problem is evaluated."""

import numpy as np

from fleetune.arrays import Bools, Floats
from fleetune.solving.opfence.instance import Instance, Placement

MAX_PLACEMENTS = 20_000
"""Limit of the number of placements."""
MAX_DEVICES = 8


def is_tiny(instance: Instance) -> bool:
    """Return True if the problem is small enough to enumerate."""
    return instance.devices <= MAX_DEVICES and bool(
        instance.operators * np.log(instance.devices) <= np.log(MAX_PLACEMENTS)
    )


def best_placement(instance: Instance) -> Placement | None:
    """Return the fastest placement that fits, or None. Ties: the lexicographically first one."""
    count = instance.devices**instance.operators
    placements = np.arange(count)[:, None] // instance.devices ** np.arange(instance.operators)[::-1] % instance.devices
    costs = _all_costs(instance, placements)
    costs[_lacks_memory(instance, placements)] = np.inf
    for at in np.argsort(costs, kind="stable").tolist():
        if np.isfinite(costs[at]) and instance.fits(placements[at]):
            found: Placement = placements[at].copy()
            return found
    return None


def _all_costs(instance: Instance, placements: Placement) -> Floats:
    """Return [placement] its time by eq. (3)."""
    across, shape = np.arange(len(placements)), (len(placements), instance.devices, instance.devices)
    transfers, dense_bytes = np.zeros(shape), np.zeros(shape)
    for maker, users in enumerate(instance.users):
        for device in range(instance.devices):
            reads = (placements[:, users] == device).any(axis=1) & (placements[:, maker] != device)
            transfers[across, placements[:, maker], device] += reads
            dense_bytes[across, placements[:, maker], device] += reads * instance.output_bytes[maker]
    alpha_s = instance.alpha * transfers
    dense_s = alpha_s + instance.beta * dense_bytes
    link_s = alpha_s + instance.beta * instance.codec.wire_bytes(
        dense_bytes, dense_s, dense_s.max(axis=(1, 2), keepdims=True)
    )
    receive_s = link_s.sum(axis=1)
    compute_s = _sums_per_device(instance.flops, placements, instance.devices) / instance.speed
    slowest = np.maximum(compute_s.max(axis=1), receive_s.max(axis=1))
    found: Floats = compute_s.sum(axis=1) + receive_s.sum(axis=1) + (instance.micro_batches - 1) * slowest
    return found


def _lacks_memory(instance: Instance, placements: Placement) -> Bools:
    """Return [placement] True where a device clearly lacks memory."""
    held = _sums_per_device(instance.memory_bytes, placements, instance.devices)
    return np.asarray((held > instance.budget_bytes * (1 + 1e-9)).any(axis=1))


def _sums_per_device(values: Floats, placements: Placement, devices: int) -> Floats:
    """Return [placement, device] the sum of the values of the device's operators."""
    return np.stack([(values * (placements == device)).sum(axis=1) for device in range(devices)], axis=1)
