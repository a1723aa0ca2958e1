"""A placement with each device's operators taken as one: which device does whose part, tried by whole neighbourhoods.

Exchanging devices leaves the parts and what passes between them as they are, so eq. (3) of thousands of exchanges is a
few array operations.
"""

from typing import NamedTuple

import numpy as np

from fleetune.solving.opfence.case import Case, Ints, Place, added
from fleetune.solving.opfence.watch import ENDLESS, Watch
from fleetune.solving.proofs import Floats

CHUNK = 4_000_000
"""Numbers of one table at a time."""
MOST_TURNED = 16
"""Devices of a stretch."""
BETTER = 1e-12
"""Relative gain that counts."""


class Parts(NamedTuple):
    """What the devices in use do, and what passes between them: [part] and [link]."""

    flops: Floats
    memory_bytes: Floats
    sender: Ints
    receiver: Ints
    transfers: Ints
    dense_bytes: Floats


def exchanged(case: Case, place: Place, fence: Ints | None = None, watch: Watch = ENDLESS) -> Place:
    """The placement after exchanging devices for as long as that makes it faster, all fits and the watch lets it.

    fence: [device]; only devices with the same number are exchanged.
    """
    if watch.over:
        return place
    used = in_sequence(case, place)
    part_of = np.full(case.devices, -1)
    part_of[used] = np.arange(len(used))
    parts = _parts(case, part_of[place], len(used))
    idle = np.setdiff1d(np.arange(case.devices), used)
    current = np.concatenate([used, idle])
    current_s = float(_costs(case, parts, used[None])[0])
    ways = [_swaps(len(used), case.devices), _turns(len(used), case.devices)]
    if fence is not None:
        ways = [way[(fence[current][way] == fence[current]).all(axis=1)] for way in ways]
    way = 0
    while way < len(ways) and not watch.over:
        best, best_s = _best(case, parts, current, ways[way], watch)
        if best_s < current_s * (1 - BETTER):
            current, current_s, way = best, best_s, 0
        else:
            way += 1
    found: Place = current[part_of[place]]
    return found


def in_sequence(case: Case, place: Place) -> Ints:
    """Devices in use by where their operators lie in the middle, in topological order."""
    position = np.empty(case.operators)
    position[case.order] = np.arange(case.operators)
    counts = np.bincount(place, minlength=case.devices)
    used = np.flatnonzero(counts)
    middle = np.bincount(place, position, minlength=case.devices)[used] / counts[used]
    return used[np.argsort(middle, kind="stable")]


def _parts(case: Case, part: Ints, count: int) -> Parts:
    """Of operators' parts; a part's number stands in for its device."""
    return Parts(added(case.flops, part, count), added(case.memory_bytes, part, count), *case.traffic(part))


def _costs(case: Case, parts: Parts, devices: Ints) -> Floats:
    """[option] of eq. (3) where part i is done by devices[option, i]; infinite where that does not fit."""
    compute_s = parts.flops / case.speed[devices]
    at = (devices[:, parts.sender], devices[:, parts.receiver])
    alpha_s, beta = case.alpha[at] * parts.transfers, case.beta[at]
    link_s = alpha_s + beta * parts.dense_bytes
    if case.codec.ratio and link_s.shape[1]:
        slowest_s = link_s.max(axis=1, keepdims=True)
        link_s = alpha_s + beta * case.codec.wire_bytes(parts.dense_bytes, link_s, slowest_s)
    receives = parts.receiver[:, None] == np.arange(len(parts.flops))
    receive_s = link_s @ receives.astype(np.float64)
    slowest = np.maximum(compute_s.max(axis=1), receive_s.max(axis=1))
    seconds = compute_s.sum(axis=1) + receive_s.sum(axis=1) + (case.rounds - 1) * slowest
    short = (parts.memory_bytes > case.budget_bytes[devices]).any(axis=1)
    found: Floats = np.where(short, np.inf, seconds)
    return found


def _best(case: Case, parts: Parts, current: Ints, way: Ints, watch: Watch) -> tuple[Ints, float]:
    """The fastest of a neighbourhood, all devices in order; of what was looked at, where the watch ends it."""
    best, best_s, count = current, np.inf, len(parts.flops)
    step = max(1, CHUNK // (count + len(parts.sender)))
    for low in range(0, len(way), step):
        if watch.over:
            break
        costs = _costs(case, parts, current[way[low : low + step, :count]])
        at = int(np.argmin(costs))
        if costs[at] < best_s:
            best, best_s = current[way[low + at]], float(costs[at])
    return best, best_s


def _swaps(used: int, devices: int) -> Ints:
    """[exchange, place]: two devices, at least one of them in use, change places."""
    one, other = np.triu_indices(devices, 1)
    one, other = one[one < used], other[one < used]
    found = np.tile(np.arange(devices), (len(one), 1))
    across = np.arange(len(one))
    found[across, one], found[across, other] = other, one
    return found


def _turns(used: int, devices: int) -> Ints:
    """[exchange, place]: a stretch of three or more devices in use, shifted by one either way or turned round."""
    found = []
    for first in range(used):
        for last in range(first + 2, min(used, first + MOST_TURNED)):
            stretch = list(range(first, last + 1))
            for turned in (stretch[1:] + stretch[:1], stretch[-1:] + stretch[:-1], stretch[::-1]):
                found.append([*range(first), *turned, *range(last + 1, devices)])
    return np.array(found, np.int64).reshape(-1, devices)
