"""CRUNCH: what a table of latencies allows, by counting instead of matching.

Right only for tables that deepen: latency and memory grow with the block's depth on every device, so that a device that
can do block l within a threshold can do all before it.

Wu, H., Chen, X., Huang, K.: Resource Management for Low-latency Cooperative Fine-tuning of Foundation Models at the
Network Edge, 2024 (LoLa-DEFT): Sections IV-B and IV-C, Proposition 1, eq. (9)-(13), Algorithm 2. The paper cuts entry
by entry, which `cuts` repeats. Read block by block, Proposition 1 says that at least L - l devices can do block l
(l = 0..L-1); so the least threshold is the largest, over blocks, of the (L - l)-th smallest entry of that block, and
nothing has to be searched.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fleetune.solving.proofs import Floats

Ints = NDArray[np.intp]
Flags = NDArray[np.bool_]


class Cut(NamedTuple):
    """One round of Algorithm 2."""

    value: float
    """The largest entry, now removed."""
    counts: Ints
    """[device]: eq. (11) after it."""
    passes: bool
    """Whether the rest still holds an allocation."""


def deepens(table: Floats) -> bool:
    """Whether each device's entries never fall from a block to the next, eq. (10); infinite: not allowed."""
    return bool(np.all(table[1:] >= table[:-1]))


def threshold(table: Floats) -> float:
    """The least T at which the pairs with entries of at most T hold an allocation; infinite: there is none.

    `table` [block, device] must deepen.
    """
    blocks = len(table)
    ranks = range(blocks - 1, -1, -1)
    return float(max(np.partition(row, rank)[rank] for rank, row in zip(ranks, table, strict=True)))


def keeps(counts: Ints, blocks: int) -> bool:
    """Proposition 1, eq. (12): with counts ascending, the one ranked K - L + l is at least l, for all l = 1..L."""
    return bool(np.all(np.sort(counts)[len(counts) - blocks :] >= np.arange(1, blocks + 1)))


def allocation(allowed: Flags) -> Ints:
    """Eq. (13): block l goes to the device ranked K - L + l by count; the lower index first where counts are equal.

    `allowed` [block, device] must keep Proposition 1.
    """
    blocks, devices = allowed.shape
    return np.argsort(np.count_nonzero(allowed, axis=0), kind="stable")[devices - blocks :]


def cuts(table: Floats) -> Iterator[Cut]:
    """Algorithm 2: remove the largest entry, recount, check, until it fails; the last value removed is the optimum."""
    left = np.where(np.isfinite(table), table, -np.inf)
    while np.any(left > -np.inf):
        at = np.unravel_index(np.argmax(left), left.shape)
        value = float(left[at])
        left[at] = -np.inf
        counts = np.count_nonzero(left > -np.inf, axis=0)
        yield Cut(value, counts, keeps(counts, len(table)))
        if not keeps(counts, len(table)):
            return
