"""top-k: the elements of largest magnitude of every sample, of equal ones the first, and their indices in few bits.

Ascending indices are a bitmap or Elias-Fano codes, as `contracts.link_codecs.index_format` decides.
"""

import numpy as np
import torch
from numpy.typing import NDArray

from fleetune.codecs.quantization import to_bf16
from fleetune.contracts.link_codecs import IndexFormat, index_format

Bytes = NDArray[np.uint8]
Indices = NDArray[np.int64]


def pack_indices(indices: Indices, elements: int) -> Bytes:
    """Return [samples, bytes] of ascending indices [samples, kept] below `elements`."""
    samples, kept = indices.shape
    form = index_format(elements, kept)
    bits = np.zeros((samples, form.bits), dtype=np.uint8)
    rows = np.arange(samples)[:, None]
    if form.bitmap:
        bits[rows, indices] = 1
    else:
        places = np.arange(form.low_bits)
        bits[:, : kept * form.low_bits] = ((indices[:, :, None] >> places) & 1).reshape(samples, -1)
        if form.bits > kept * form.low_bits:
            bits[rows, kept * form.low_bits + (indices >> form.low_bits) + np.arange(kept)] = 1
    return np.packbits(bits, axis=1, bitorder="little")


def unpack_indices(packed: Bytes, elements: int, kept: int) -> Indices:
    """Return [samples, kept] indices; ValueError unless each sample's ascend and are below `elements`."""
    form = index_format(elements, kept)
    bits = np.unpackbits(packed, axis=1, count=form.bits, bitorder="little")
    if form.bitmap:
        return _places_of_ones(bits, kept)
    lows = bits[:, : kept * form.low_bits].reshape(len(bits), kept, form.low_bits)
    indices = _high_parts(bits, kept, form) + lows @ (np.int64(1) << np.arange(form.low_bits))
    if (np.diff(indices, axis=1) <= 0).any() or (indices[:, -1:] >= elements).any():
        raise ValueError(f"indices do not ascend below {elements}")
    return indices


def _high_parts(bits: Bytes, kept: int, form: IndexFormat) -> Indices:
    unary = bits[:, kept * form.low_bits :]
    if not unary.shape[1]:
        return np.zeros((len(bits), kept), dtype=np.int64)
    return (_places_of_ones(unary, kept) - np.arange(kept)) << form.low_bits


def _places_of_ones(bits: Bytes, kept: int) -> Indices:
    """Return [samples, kept] the places of ones; ValueError unless each row has `kept`."""
    if (bits.sum(axis=1, dtype=np.int64) != kept).any():
        raise ValueError(f"a sample does not have {kept} indices")
    return np.nonzero(bits)[1].astype(np.int64).reshape(len(bits), kept)


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
