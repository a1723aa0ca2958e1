"""Ascending indices in few bits: a bitmap or Elias-Fano codes, as `contracts.link_codecs.index_format` decides."""

import numpy as np
from numpy.typing import NDArray

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
