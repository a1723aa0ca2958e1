"""top-k: the elements of largest magnitude of every sample; of equal ones the first."""

import numpy as np
import torch
from numpy.typing import NDArray

from fleetune.codecs.halves import to_bf16
from fleetune.codecs.indices import Indices

_MAGNITUDE = np.int32(0x7FFFFFFF)
"""Without the sign, the bits of floats are integers in the order of magnitudes."""
_INFINITE = 0x7F800000
_PROBED = 4096
"""Elements of a long row that guess the bound which the kept ones pass."""
_TOGETHER = 1 << 16
"""Elements of short rows that are looked at together."""


def largest_indices(rows: torch.Tensor, kept: int) -> Indices | None:
    """Return [samples, kept] ascending indices of the largest of float32 rows; None if a value is not finite."""
    samples, elements = rows.shape
    found = np.empty((samples, kept), dtype=np.int64)
    together = max(1, _TOGETHER // elements)
    for first in range(0, samples, together):
        keys = rows[first : first + together].numpy().view(np.int32) & _MAGNITUDE
        if keys.max(initial=0) >= _INFINITE:
            return None
        long = len(keys) == 1 and elements > 4 * _PROBED
        found[first : first + together] = _largest_of_one(keys[0], kept) if long else _largest(keys, kept)
    return found


def _largest(keys: NDArray[np.int32], kept: int) -> Indices:
    """Return [rows, kept] ascending indices of the largest keys of each row, of equal ones the first."""
    elements = keys.shape[1]
    bounds = np.partition(keys, elements - kept, axis=1)[:, elements - kept :].min(axis=1)
    passed = keys >= bounds[:, None]
    surplus = np.count_nonzero(passed, axis=1) - kept
    for row in np.flatnonzero(surplus):  # equal ones: the last are left out
        equal = np.flatnonzero(keys[row] == bounds[row])
        passed[row, equal[len(equal) - surplus[row] :]] = False
    return np.nonzero(passed)[1].reshape(len(keys), kept)


def _largest_of_one(keys: NDArray[np.int32], kept: int) -> Indices:
    """The same for one long row: only elements above a guessed bound are looked at closely.

    A regular sample of the elements gives a bound that somewhat more than `kept` should pass; if too few do, all are
    looked at.
    """
    probe = np.sort(keys[:: len(keys) // _PROBED])
    expected = len(probe) * kept / len(keys)
    above = int(expected + 3 * np.sqrt(expected) + 2)
    if above < len(probe):
        passed = np.flatnonzero(keys >= probe[len(probe) - 1 - above])
        if len(passed) >= kept:
            return passed[_largest(keys[passed][None], kept)]
    return _largest(keys[None], kept)


def gather(rows: torch.Tensor, indices: torch.Tensor) -> torch.Tensor:
    """Return the elements of float32 rows at [samples, kept] indices, as bfloat16."""
    return to_bf16(rows.gather(1, indices))


def scatter(values: torch.Tensor, indices: torch.Tensor, elements: int) -> torch.Tensor:
    """Return float32 rows with values [samples, kept] at their indices and zeros elsewhere."""
    rows = torch.zeros((len(values), elements), device=values.device)
    return rows.scatter_(1, indices, values.float())
