"""Link codecs: what crosses a link instead of a dense tensor, and how many bytes it has.

The first dimension of a tensor is samples. Every sample is coded on its own, so that its bytes depend only on its
number of elements, and what it decodes to does not depend on the samples that travel with it. `fleetune.codecs` has the
codecs themselves; this module has no torch and states their bytes beforehand.
"""

import math
from typing import NamedTuple

from fleetune.contracts.record import positive
from fleetune.errors import Refused

DENSE, FP16, BF16, INT8, INT4 = "dense", "fp16", "bf16", "int8", "int4"
INT8_HADAMARD, INT4_HADAMARD = "int8-hadamard", "int4-hadamard"
TOP_K = "top-k"
FORWARD_MASK = "forward-mask"
"""Gradients at the elements that top-k kept in the forward, whose indices both ends know."""
SPARSE = (TOP_K, FORWARD_MASK)
"""Codecs that leave elements out; only these have a ratio."""
ROTATED = (INT8_HADAMARD, INT4_HADAMARD)
PACKED = (INT4, INT4_HADAMARD)
"""Codecs with two codes in a byte."""
CODECS = (DENSE, FP16, BF16, INT8, INT4, INT8_HADAMARD, INT4_HADAMARD, TOP_K, FORWARD_MASK)
ELEMENT_BYTES = 4
"""Size of an element that crosses a cut: float32."""
GROUP_ELEMENTS = 64
"""Elements of a sample with one scale in int8 and int4, which a Hadamard rotation mixes (a tile of TAH-Quant)."""
SCALE_BYTES = 2
"""A group's scale is a bfloat16; fp16 has an int16 exponent per sample."""
KEPT_VALUE_BYTES = 2
"""Kept elements of the sparse codecs are bfloat16."""


class IndexFormat(NamedTuple):
    """Form of a sample's ascending kept indices.

    `bitmap`: one bit per element. Otherwise Elias-Fano: the low bits of each index side by side, then the high parts in
    unary: bit (high part of index i) + i is set. With all bits low, there is no unary part.
    """

    bitmap: bool
    low_bits: int
    bits: int
    """Bits of one sample."""

    @property
    def size_bytes(self) -> int:
        """Bytes of one sample."""
        return -(-self.bits // 8)


def kept_elements(elements: int, ratio: float) -> int:
    """Return the number of elements that a sparse codec keeps of a sample: one of every `ratio`, rounded up."""
    return min(elements, math.ceil(elements / ratio))


def index_format(elements: int, kept: int) -> IndexFormat:
    """Return the smallest form of `kept` indices below `elements`, which these two numbers alone decide.

    An index takes at most 2 + log2(elements / kept) bits, about half a bit more than the least that any form can.
    """
    if kept == 0:
        return IndexFormat(bitmap=False, low_bits=0, bits=0)
    widest = (elements - 1).bit_length()
    found = IndexFormat(bitmap=True, low_bits=0, bits=elements)
    for low in range(widest + 1):
        unary = kept + ((elements - 1) >> low) if low < widest else 0
        if kept * low + unary < found.bits:
            found = IndexFormat(bitmap=False, low_bits=low, bits=kept * low + unary)
    return found


def coded_sample_bytes(codec: str, elements: int, ratio: float) -> int:
    """Return the bytes of one sample in a codec other than dense."""
    groups = -(-elements // GROUP_ELEMENTS)
    if codec in SPARSE:
        kept = kept_elements(elements, ratio)
        indices = index_format(elements, kept).size_bytes if codec == TOP_K else 0
        return kept * KEPT_VALUE_BYTES + indices
    if codec in (FP16, BF16):
        return 2 * elements + (SCALE_BYTES if codec == FP16 else 0)
    codes = groups * GROUP_ELEMENTS if codec in ROTATED else elements
    if codec in PACKED:
        codes = -(-codes // 2)
    return codes + groups * SCALE_BYTES


def effective_codec(codec: str, elements: int, ratio: float, element_bytes: int = ELEMENT_BYTES) -> str:
    """Return the codec that samples of `elements` elements travel in: dense where `codec` would save nothing.

    Sparse codecs that keep every element are dense too. Refused: an unknown codec, or a ratio that is not above 0.
    """
    if codec not in CODECS:
        raise Refused(f"codec: {codec!r} is not known; allowed are {', '.join(CODECS)}")
    positive("codec", ratio=ratio)
    if codec == DENSE or codec in SPARSE and kept_elements(elements, ratio) == elements:
        return DENSE
    measured = TOP_K if codec == FORWARD_MASK else codec  # a mask exists only where the forward was sparse
    return codec if coded_sample_bytes(measured, elements, ratio) < elements * element_bytes else DENSE


def wire_bytes(
    sample_bytes: int, samples: int, codec: str, ratio: float = 1.0, element_bytes: int = ELEMENT_BYTES
) -> int:
    """Return the bytes on the wire of `samples` samples with `sample_bytes` dense bytes each; never more than dense.

    Refused: an unknown codec, or a ratio that is not above 0.
    """
    elements = -(-sample_bytes // element_bytes)
    effective = effective_codec(codec, elements, ratio, element_bytes)
    coded = sample_bytes if effective == DENSE else coded_sample_bytes(effective, elements, ratio)
    return samples * min(sample_bytes, coded)


def bytes_per_kept_element(codec: str, ratio: float) -> float:
    """Return the bytes of a kept element of a sparse codec, its index included, for samples of many elements."""
    if codec != TOP_K:
        return float(KEPT_VALUE_BYTES)
    exact = max(0, math.floor(math.log2(ratio)))
    lows = range(max(0, exact - 2), exact + 3)
    index_bits: float = min(ratio, *(low + 1 + ratio / 2**low for low in lows))
    return KEPT_VALUE_BYTES + index_bits / 8
