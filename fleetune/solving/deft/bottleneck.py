"""Allocations on a table [block, device]: whose slowest pair is fastest, and whose sum is least."""

from typing import NamedTuple

import numpy as np
from scipy.optimize import linear_sum_assignment
from scipy.sparse import csr_matrix
from scipy.sparse.csgraph import maximum_bipartite_matching

from fleetune.solving.deft import crunching
from fleetune.solving.deft.crunching import Flags, Ints
from fleetune.solving.proofs import Floats


class Bottleneck(NamedTuple):
    """An optimal allocation."""

    threshold: float
    """Of its slowest pair."""
    devices: Ints
    """Of each block."""
    solved_by: str


def bottleneck(table: Floats) -> Bottleneck:
    """The allocation whose slowest pair is fastest: by CRUNCH where it is right, else by matching.

    `table` [block, device], infinite where a pair is not allowed; it must hold an allocation.
    """
    if crunching.deepens(table):
        threshold = crunching.threshold(table)
        return Bottleneck(threshold, crunching.allocation(table <= threshold), "crunch")
    return matched(table)


def matched(table: Floats) -> Bottleneck:
    """By search over the distinct entries, each tried by a maximum matching (Hopcroft and Karp); for any table.

    No block's best device is faster than the optimum, so the search starts at the slowest of these.
    """
    least = np.max(np.min(table, axis=1))
    entries = np.unique(table[np.isfinite(table) & (table >= least)])
    low, high, best = 0, len(entries), None
    while low < high:
        middle = (low + high) // 2
        devices = _allocation(table <= entries[middle])
        if devices is None:
            low = middle + 1
        else:
            high, best = middle, devices
    if best is None:
        raise ValueError("no allocation is allowed by the table")
    return Bottleneck(float(entries[high]), best, "matching")


def assigned(costs: Floats) -> Ints | None:
    """Devices of the blocks with the least sum of costs [block, device], by the Hungarian method.

    Infinite: not allowed. None: nothing else is left.
    """
    try:
        _, devices = linear_sum_assignment(costs)
    except ValueError:  # what scipy says where no assignment is allowed
        return None
    return np.asarray(devices, np.intp)


def _allocation(allowed: Flags) -> Ints | None:
    """Any allocation within `allowed` [block, device]; None: there is none."""
    order = np.argsort(np.count_nonzero(allowed, axis=1), kind="stable")  # the least choice first: twenty times as fast
    found = maximum_bipartite_matching(csr_matrix(allowed[order]), perm_type="column")
    devices = np.empty(len(order), np.intp)
    devices[order] = found
    return devices if np.all(found >= 0) else None
