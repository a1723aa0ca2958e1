"""Every placement of a tiny problem, looked at."""

import numpy as np

from fleetune.solving.opfence.case import Case, Place
from fleetune.solving.opfence.walk import Bools
from fleetune.solving.proofs import Floats

MOST = 20_000
"""Placements that are few enough to look at each."""
MOST_DEVICES = 8


def few(case: Case) -> bool:
    """Whether every placement can be looked at."""
    return case.devices <= MOST_DEVICES and bool(case.operators * np.log(case.devices) <= np.log(MOST))


def best_of_all(case: Case) -> Place | None:
    """The fastest placement that fits; None: none fits. Ties: the first, counting operators' devices like digits."""
    count = case.devices**case.operators
    places = np.arange(count)[:, None] // case.devices ** np.arange(case.operators)[::-1] % case.devices
    costs = _costs(case, places)
    costs[_short(case, places)] = np.inf
    for at in np.argsort(costs, kind="stable").tolist():
        if np.isfinite(costs[at]) and case.fits(places[at]):
            found: Place = places[at].copy()
            return found
    return None


def _costs(case: Case, places: Place) -> Floats:
    """[placement] of eq. (3)."""
    across, shape = np.arange(len(places)), (len(places), case.devices, case.devices)
    transfers, dense_bytes = np.zeros(shape), np.zeros(shape)
    for maker, users in enumerate(case.users):
        for device in range(case.devices):
            reads = (places[:, users] == device).any(axis=1) & (places[:, maker] != device)
            transfers[across, places[:, maker], device] += reads
            dense_bytes[across, places[:, maker], device] += reads * case.output_bytes[maker]
    alpha_s = case.alpha * transfers
    dense_s = alpha_s + case.beta * dense_bytes
    link_s = alpha_s + case.beta * case.codec.wire_bytes(dense_bytes, dense_s, dense_s.max(axis=(1, 2), keepdims=True))
    receive_s, compute_s = link_s.sum(axis=1), _summed(case.flops, places, case.devices) / case.speed
    slowest = np.maximum(compute_s.max(axis=1), receive_s.max(axis=1))
    found: Floats = compute_s.sum(axis=1) + receive_s.sum(axis=1) + (case.rounds - 1) * slowest
    return found


def _short(case: Case, places: Place) -> Bools:
    """[placement]: some device is clearly short of memory."""
    held = _summed(case.memory_bytes, places, case.devices)
    return np.asarray((held > case.budget_bytes * (1 + 1e-9)).any(axis=1))


def _summed(values: Floats, places: Place, devices: int) -> Floats:
    """[placement, device]"""
    return np.stack([(values * (places == device)).sum(axis=1) for device in range(devices)], axis=1)
