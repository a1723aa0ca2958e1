"""Allocation of blocks to devices on a table [block, device], and division of the band among them.

CRUNCH (Wu, H., Chen, X., Huang, K.: Resource Management for Low-latency Cooperative Fine-tuning of Foundation Models at
the Network Edge, 2024 (LoLa-DEFT): Sections IV-B and IV-C, Proposition 1, eq. (9)-(13), Algorithm 2) finds the
bottleneck optimum by counting. It is correct only for monotone tables: latency and memory grow with the block's depth
on every device, so that a device that can run block l within a threshold can run all before it. The paper removes entry
by entry. By Proposition 1, at least L - l devices can run block l (l = 0..L-1); so the least threshold is the largest,
over blocks, of the (L - l)-th smallest entry of that block, without a search. Other tables are solved by matching.

The best division of the band lets all blocks finish at once. LoLa-DEFT's Lemma 1 finds it by dual variables; here the
common finish time is the root of one equation, to the last bits.
"""

from typing import NamedTuple

import numpy as np
from scipy.optimize import linear_sum_assignment
from scipy.sparse import csr_matrix
from scipy.sparse.csgraph import maximum_bipartite_matching

from fleetune.arrays import Bools, Floats
from fleetune.solving.lola_deft.instance import Allocation, Instance, Ints, rounded_into_band


def is_monotone(table: Floats) -> bool:
    """Return True if each device's entries never decrease from a block to the next, eq. (10); infinite: not allowed."""
    return bool(np.all(table[1:] >= table[:-1]))


def crunch_threshold(table: Floats) -> float:
    """Return the least T for which the entries up to T contain an allocation; infinite if there is none.

    table: [block, device], monotone.
    """
    blocks = len(table)
    ranks = range(blocks - 1, -1, -1)
    return float(max(np.partition(row, rank)[rank] for rank, row in zip(ranks, table, strict=True)))


def crunch_allocation(allowed: Bools) -> Ints:
    """Return eq. (13): block l goes to the device ranked K - L + l by count, ties by index.

    allowed: [block, device], satisfying Proposition 1.
    """
    blocks, devices = allowed.shape
    return np.argsort(np.count_nonzero(allowed, axis=0), kind="stable")[devices - blocks :]


class BottleneckAllocation(NamedTuple):
    """An optimal allocation."""

    threshold: float
    """Entry of its slowest pair."""
    devices: Ints
    """[block]"""
    solved_by: str


def bottleneck_allocation(table: Floats) -> BottleneckAllocation:
    """Return the allocation with the fastest slowest pair: by CRUNCH on monotone tables, else by matching.

    table: [block, device], infinite where a pair is not allowed; must contain an allocation.
    """
    if is_monotone(table):
        threshold = crunch_threshold(table)
        return BottleneckAllocation(threshold, crunch_allocation(table <= threshold), "crunch")
    return bottleneck_matching(table)


def bottleneck_matching(table: Floats) -> BottleneckAllocation:
    """Return the same for any table by bisection over its entries, each tested by a maximum matching (Hopcroft-Karp).

    No block is faster than on its best device, so the search starts at the slowest of these.
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
    """Return [block] the devices with the least sum of costs [block, device], by the Hungarian method.

    Infinite costs exclude a pair; None if no allocation is left.
    """
    try:
        _, devices = linear_sum_assignment(costs)
    except ValueError:  # scipy's error for an infeasible matrix
        return None
    return np.asarray(devices, np.intp)


def _perfect_matching(allowed: Bools) -> Ints | None:
    """Return an allocation within `allowed` [block, device], or None."""
    order = np.argsort(np.count_nonzero(allowed, axis=1), kind="stable")  # fewest options first: 20 times as fast
    found = maximum_bipartite_matching(csr_matrix(allowed[order]), perm_type="column")
    devices = np.empty(len(order), np.intp)
    devices[order] = found
    return devices if np.all(found >= 0) else None


MAX_STEPS = 100
"""Newton's method needs about ten."""


def finish_slack_s(compute_s: Floats, upload_s: Floats) -> float:
    """Return the time from the longest computation to the common finish, with the band divided accordingly.

    Both arguments are [block]; upload_s over the whole band. To finish at T, block l needs the share upload_s[l] / (T -
    compute_s[l]); the shares add up to 1. The reciprocal of their sum is concave and rises in T, so that Newton's
    method never passes the root from below. T is relative to the longest computation, because computations may exceed
    uploads by more than floats resolve.
    """
    before_s = np.max(compute_s) - compute_s
    slack = float(np.max(upload_s - before_s))
    for _ in range(MAX_STEPS if slack > 0 else 0):
        parts = upload_s / (slack + before_s)
        total = float(np.sum(parts))
        following = slack + total * (total - 1) / float(np.sum(parts / (slack + before_s)))
        if not following > slack:
            break
        slack = following
    return slack


def min_latency_s(instance: Instance, devices: Ints) -> float:
    """Return the least latency of this allocation."""
    compute_s, upload_s = instance.times_on(devices)
    return float(np.max(compute_s)) + finish_slack_s(compute_s, upload_s)


def with_best_bandwidth(instance: Instance, devices: Ints) -> Allocation:
    """Return this allocation with the best division of the band; equal parts if there is nothing to send."""
    compute_s, upload_s = instance.times_on(devices)
    slack = finish_slack_s(compute_s, upload_s)
    if not slack > 0:
        return instance.with_equal_bandwidth(devices)
    parts = upload_s / (slack + (np.max(compute_s) - compute_s))
    band_hz = instance.problem.bandwidth_hz
    return Allocation(devices, rounded_into_band((parts / np.sum(parts) * band_hz).tolist(), band_hz))
