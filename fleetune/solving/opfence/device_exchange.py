"""Neighbourhoods of a placement that exchange devices and leave the partition of the graph as it is.

The partition and its traffic (a quotient graph) do not change, so eq. (3) of thousands of exchanges takes a few array
operations.
"""

from typing import NamedTuple

import numpy as np

from fleetune.arrays import Floats, Ints
from fleetune.solving.limits import NO_DEADLINE, Deadline
from fleetune.solving.opfence.instance import MIN_GAIN, Instance, Placement, sum_by_group

MAX_TABLE_ELEMENTS = 4_000_000
"""Elements per table."""
MAX_SHIFTED = 16
"""Longest segment that is shifted."""


class QuotientGraph(NamedTuple):
    """Work of the parts of a placement and the traffic between them: arrays [part] and [link]."""

    flops: Floats
    memory_bytes: Floats
    sender: Ints
    receiver: Ints
    transfers: Ints
    dense_bytes: Floats


def exchange_devices(
    instance: Instance, placement: Placement, cluster_of: Ints | None = None, deadline: Deadline = NO_DEADLINE
) -> Placement:
    """Exchange devices while that is faster, everything fits and the deadline allows; return the placement.

    cluster_of: [device]; only devices with the same number are exchanged.
    """
    if deadline.expired:
        return placement
    used = devices_in_order(instance, placement)
    part_of = np.full(instance.devices, -1)
    part_of[used] = np.arange(len(used))
    quotient = _quotient_graph(instance, part_of[placement], len(used))
    idle = np.setdiff1d(np.arange(instance.devices), used)
    current = np.concatenate([used, idle])
    current_s = float(_costs(instance, quotient, used[None])[0])
    neighbourhoods = [_swaps(len(used), instance.devices), _segment_shifts(len(used), instance.devices)]
    if cluster_of is not None:
        neighbourhoods = [x[(cluster_of[current][x] == cluster_of[current]).all(axis=1)] for x in neighbourhoods]
    tried = 0
    while tried < len(neighbourhoods) and not deadline.expired:
        best, best_s = _best(instance, quotient, current, neighbourhoods[tried], deadline)
        if best_s < current_s * (1 - MIN_GAIN):
            current, current_s, tried = best, best_s, 0
        else:
            tried += 1
    found: Placement = current[part_of[placement]]
    return found


def devices_in_order(instance: Instance, placement: Placement) -> Ints:
    """Return the devices in use by the mean topological position of their operators."""
    position = np.empty(instance.operators)
    position[instance.order] = np.arange(instance.operators)
    counts = np.bincount(placement, minlength=instance.devices)
    used = np.flatnonzero(counts)
    middle = np.bincount(placement, position, minlength=instance.devices)[used] / counts[used]
    return used[np.argsort(middle, kind="stable")]


def _quotient_graph(instance: Instance, part: Ints, count: int) -> QuotientGraph:
    """Return the quotient graph; part: [operator] the number of its part, from 0."""
    return QuotientGraph(
        sum_by_group(instance.flops, part, count),
        sum_by_group(instance.memory_bytes, part, count),
        *instance.traffic(part),
    )


def _costs(instance: Instance, quotient: QuotientGraph, devices: Ints) -> Floats:
    """Return [option] the time by eq. (3) if devices[option, i] runs part i; infinite if it does not fit."""
    compute_s = quotient.flops / instance.speed[devices]
    at = (devices[:, quotient.sender], devices[:, quotient.receiver])
    alpha_s, beta = instance.alpha[at] * quotient.transfers, instance.beta[at]
    link_s = alpha_s + beta * quotient.dense_bytes
    if instance.codec.ratio and link_s.shape[1]:
        slowest_s = link_s.max(axis=1, keepdims=True)
        link_s = alpha_s + beta * instance.codec.wire_bytes(quotient.dense_bytes, link_s, slowest_s)
    receives = quotient.receiver[:, None] == np.arange(len(quotient.flops))
    receive_s = link_s @ receives.astype(np.float64)
    slowest = np.maximum(compute_s.max(axis=1), receive_s.max(axis=1))
    seconds = compute_s.sum(axis=1) + receive_s.sum(axis=1) + (instance.micro_batches - 1) * slowest
    lacks_memory = (quotient.memory_bytes > instance.budget_bytes[devices]).any(axis=1)
    found: Floats = np.where(lacks_memory, np.inf, seconds)
    return found


def _best(
    instance: Instance, quotient: QuotientGraph, current: Ints, neighbourhood: Ints, deadline: Deadline
) -> tuple[Ints, float]:
    """Return the fastest arrangement of a neighbourhood and its time; at the deadline, of those examined."""
    best, best_s, count = current, np.inf, len(quotient.flops)
    step = max(1, MAX_TABLE_ELEMENTS // (count + len(quotient.sender)))
    for low in range(0, len(neighbourhood), step):
        if deadline.expired:
            break
        costs = _costs(instance, quotient, current[neighbourhood[low : low + step, :count]])
        at = int(np.argmin(costs))
        if costs[at] < best_s:
            best, best_s = current[neighbourhood[low + at]], float(costs[at])
    return best, best_s


def _swaps(used: int, devices: int) -> Ints:
    """Return [exchange, position] all swaps of two devices, at least one of them in use."""
    one, other = np.triu_indices(devices, 1)
    one, other = one[one < used], other[one < used]
    found = np.tile(np.arange(devices), (len(one), 1))
    across = np.arange(len(one))
    found[across, one], found[across, other] = other, one
    return found


def _segment_shifts(used: int, devices: int) -> Ints:
    """Return [exchange, position] all segments of three or more used devices, rotated by one or reversed."""
    found = []
    for first in range(used):
        for last in range(first + 2, min(used, first + MAX_SHIFTED)):
            segment = list(range(first, last + 1))
            for shifted in (segment[1:] + segment[:1], segment[-1:] + segment[:-1], segment[::-1]):
                found.append([*range(first), *shifted, *range(last + 1, devices)])
    return np.array(found, np.int64).reshape(-1, devices)
