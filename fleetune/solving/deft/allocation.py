"""CRUNCH: what a table of latencies allows, by counting instead of matching.

Right only for tables that deepen: latency and memory grow with the block's depth on every device, so that a device that
can do block l within a threshold can do all before it.

Wu, H., Chen, X., Huang, K.: Resource Management for Low-latency Cooperative Fine-tuning of Foundation Models at the
Network Edge, 2024 (LoLa-DEFT): Sections IV-B and IV-C, Proposition 1, eq. (9)-(13), Algorithm 2. The paper cuts entry
by entry, which `cuts` repeats. Read block by block, Proposition 1 says that at least L - l devices can do block l
(l = 0..L-1); so the least threshold is the largest, over blocks, of the (L - l)-th smallest entry of that block, and
nothing has to be searched.

Allocations on a table [block, device]: whose slowest pair is fastest, and whose sum is least.

The band divided so that blocks with given devices all end at once: the best division for that allocation.

LoLa-DEFT's Lemma 1 reaches the same by dual variables; here the common end is the root of one equation, found to the
last bits.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment
from scipy.sparse import csr_matrix
from scipy.sparse.csgraph import maximum_bipartite_matching

from fleetune.solving.deft.instance import Allocation, Instance, Ints, rounded_into_band
from fleetune.solving.validation import Floats

Flags = NDArray[np.bool_]


def is_monotone(table: Floats) -> bool:
    """Whether each device's entries never fall from a block to the next, eq. (10); infinite: not allowed."""
    return bool(np.all(table[1:] >= table[:-1]))


def crunch_threshold(table: Floats) -> float:
    """The least T at which the pairs with entries of at most T hold an allocation; infinite: there is none.

    `table` [block, device] must deepen.
    """
    blocks = len(table)
    ranks = range(blocks - 1, -1, -1)
    return float(max(np.partition(row, rank)[rank] for rank, row in zip(ranks, table, strict=True)))


def crunch_allocation(allowed: Flags) -> Ints:
    """Eq. (13): block l goes to the device ranked K - L + l by count; the lower index first where counts are equal.

    `allowed` [block, device] must keep Proposition 1.
    """
    blocks, devices = allowed.shape
    return np.argsort(np.count_nonzero(allowed, axis=0), kind="stable")[devices - blocks :]


class BottleneckAllocation(NamedTuple):
    """An optimal allocation."""

    threshold: float
    """Of its slowest pair."""
    devices: Ints
    """Of each block."""
    solved_by: str


def bottleneck_allocation(table: Floats) -> BottleneckAllocation:
    """The allocation whose slowest pair is fastest: by CRUNCH where it is right, else by matching.

    `table` [block, device], infinite where a pair is not allowed; it must hold an allocation.
    """
    if is_monotone(table):
        threshold = crunch_threshold(table)
        return BottleneckAllocation(threshold, crunch_allocation(table <= threshold), "crunch")
    return bottleneck_matching(table)


def bottleneck_matching(table: Floats) -> BottleneckAllocation:
    """By search over the distinct entries, each tried by a maximum matching (Hopcroft and Karp); for any table.

    No block's best device is faster than the optimum, so the search starts at the slowest of these.
    """
    least = np.max(np.min(table, axis=1))
    entries = np.unique(table[np.isfinite(table) & (table >= least)])
    low, high, best = 0, len(entries), None
    while low < high:
        middle = (low + high) // 2
        devices = _perfect_matching(table <= entries[middle])
        if devices is None:
            low = middle + 1
        else:
            high, best = middle, devices
    if best is None:
        raise ValueError("no allocation is allowed by the table")
    return BottleneckAllocation(float(entries[high]), best, "matching")


def min_cost_assignment(costs: Floats) -> Ints | None:
    """Devices of the blocks with the least sum of costs [block, device], by the Hungarian method.

    Infinite: not allowed. None: nothing else is left.
    """
    try:
        _, devices = linear_sum_assignment(costs)
    except ValueError:  # what scipy says where no assignment is allowed
        return None
    return np.asarray(devices, np.intp)


def _perfect_matching(allowed: Flags) -> Ints | None:
    """Any allocation within `allowed` [block, device]; None: there is none."""
    order = np.argsort(np.count_nonzero(allowed, axis=1), kind="stable")  # the least choice first: twenty times as fast
    found = maximum_bipartite_matching(csr_matrix(allowed[order]), perm_type="column")
    devices = np.empty(len(order), np.intp)
    devices[order] = found
    return devices if np.all(found >= 0) else None


MAX_STEPS = 100
"""Newton's method needs about ten."""


def finish_slack_s(compute_s: Floats, upload_s: Floats) -> float:
    """How long after the longest computation all end, when the band is divided so that they end at once.

    Both [block], upload_s over the whole band. The part of the band that block l needs to end at T is
    upload_s[l] / (T - compute_s[l]); the parts add up to 1. Their sum's reciprocal is concave and rises in T, so
    Newton's method on it never passes the root from below. T is kept as a distance from the longest computation, for
    computations may be longer than uploads by more than floats can tell.
    """
    before_s = np.max(compute_s) - compute_s
    spare = float(np.max(upload_s - before_s))
    for _ in range(MAX_STEPS if spare > 0 else 0):
        parts = upload_s / (spare + before_s)
        total = float(np.sum(parts))
        following = spare + total * (total - 1) / float(np.sum(parts / (spare + before_s)))
        if not following > spare:
            break
        spare = following
    return spare


def min_latency_s(instance: Instance, devices: Ints) -> float:
    """The least latency of this allocation."""
    compute_s, upload_s = instance.times_on(devices)
    return float(np.max(compute_s)) + finish_slack_s(compute_s, upload_s)


def with_best_bandwidth(instance: Instance, devices: Ints) -> Allocation:
    """This allocation with the band at its best; equal parts where there is nothing to send."""
    compute_s, upload_s = instance.times_on(devices)
    spare = finish_slack_s(compute_s, upload_s)
    if not spare > 0:
        return instance.with_equal_bandwidth(devices)
    parts = upload_s / (spare + (np.max(compute_s) - compute_s))
    band_hz = instance.problem.bandwidth_hz
    return Allocation(devices, rounded_into_band((parts / np.sum(parts) * band_hz).tolist(), band_hz))
