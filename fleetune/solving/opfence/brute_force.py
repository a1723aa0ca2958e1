"""Enumeration of every placement of a tiny problem."""

import numpy as np

from fleetune.solving.opfence.instance import Instance, Placement
from fleetune.solving.opfence.path_dp import Bools
from fleetune.solving.validation import Floats

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
    places = np.arange(count)[:, None] // instance.devices ** np.arange(instance.operators)[::-1] % instance.devices
    costs = _all_costs(instance, places)
    costs[_short(instance, places)] = np.inf
    for at in np.argsort(costs, kind="stable").tolist():
        if np.isfinite(costs[at]) and instance.fits(places[at]):
            found: Placement = places[at].copy()
            return found
    return None


def _all_costs(instance: Instance, places: Placement) -> Floats:
    """Return [placement] its time by eq. (3)."""
    across, shape = np.arange(len(places)), (len(places), instance.devices, instance.devices)
    transfers, dense_bytes = np.zeros(shape), np.zeros(shape)
    for maker, users in enumerate(instance.users):
        for device in range(instance.devices):
            reads = (places[:, users] == device).any(axis=1) & (places[:, maker] != device)
            transfers[across, places[:, maker], device] += reads
            dense_bytes[across, places[:, maker], device] += reads * instance.output_bytes[maker]
    alpha_s = instance.alpha * transfers
    dense_s = alpha_s + instance.beta * dense_bytes
    link_s = alpha_s + instance.beta * instance.codec.wire_bytes(
        dense_bytes, dense_s, dense_s.max(axis=(1, 2), keepdims=True)
    )
    receive_s, compute_s = link_s.sum(axis=1), _summed(instance.flops, places, instance.devices) / instance.speed
    slowest = np.maximum(compute_s.max(axis=1), receive_s.max(axis=1))
    found: Floats = compute_s.sum(axis=1) + receive_s.sum(axis=1) + (instance.rounds - 1) * slowest
    return found


def _short(instance: Instance, places: Placement) -> Bools:
    """Return [placement] True where a device clearly lacks memory."""
    held = _summed(instance.memory_bytes, places, instance.devices)
    return np.asarray((held > instance.budget_bytes * (1 + 1e-9)).any(axis=1))


def _summed(values: Floats, places: Placement, devices: int) -> Floats:
    """Return [placement, device] the sum of the values of the device's operators."""
    return np.stack([(values * (places == device)).sum(axis=1) for device in range(devices)], axis=1)
