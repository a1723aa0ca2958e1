"""Codecs state their bytes beforehand, from a sample's number of elements alone."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleetune.contracts.link_codecs import (
    CODECS,
    DENSE,
    FORWARD_MASK,
    TOP_K,
    bytes_per_kept_element,
    effective_codec,
    index_format,
    kept_elements,
    wire_bytes,
)
from fleetune.errors import Refused


@pytest.mark.parametrize(
    ("codec", "sizes"),
    [
        ("dense", [0, 4, 12, 40, 256, 260, 512]),
        ("fp16", [0, 4, 8, 22, 130, 132, 258]),  # two bytes each, and an exponent
        ("bf16", [0, 2, 6, 20, 128, 130, 256]),
        ("int8", [0, 3, 5, 12, 66, 69, 132]),  # a byte each, and two for every 64 begun
        ("int4", [0, 3, 4, 7, 34, 37, 68]),
        ("int8-hadamard", [0, 4, 12, 40, 66, 132, 132]),  # whole groups of 64, dense where that is more
        ("int4-hadamard", [0, 4, 12, 34, 34, 68, 68]),
    ],
)
def test_bytes_of_a_sample(codec: str, sizes: list[int]) -> None:
    """Samples of 0, 1, 3, 10, 64, 65 and 128 elements of four bytes."""
    assert [wire_bytes(4 * n, 1, codec) for n in (0, 1, 3, 10, 64, 65, 128)] == sizes


@pytest.mark.parametrize(
    ("elements", "ratio", "wire"),
    [
        (1000, 1.0, 4000),  # everything is kept: dense, without loss
        (1000, 2.0, 2 * 500 + 125),  # a bitmap
        (1000, 4.0, 2 * 250 + 125),  # one bit of two stays low: 250 + 250 + 499 bits
        (1000, 100.0, 2 * 10 + 11),  # 10 indices of 6 low bits, 10 + 15 bits above
        (1000, 1e9, 2 + 2),  # one index of 10 bits
        (1, 100.0, 4),
        (2, 100.0, 2 + 1),
        (0, 100.0, 0),
    ],
)
def test_top_k_is_half_precision_and_short_indices(elements: int, ratio: float, wire: int) -> None:
    """Values take two bytes, indices the shortest of a bitmap and Elias-Fano codes with any number of low bits."""
    assert wire_bytes(4 * elements, 1, TOP_K, ratio) == wire
    kept = kept_elements(elements, ratio)
    assert wire_bytes(4 * elements, 1, FORWARD_MASK, ratio) == (2 * kept if kept < elements else 4 * elements)


@given(
    st.sampled_from(CODECS), st.integers(0, 5000), st.integers(0, 9), st.floats(0.5, 1e6), st.sampled_from([1, 2, 4, 8])
)
def test_never_more_than_dense(codec: str, elements: int, samples: int, ratio: float, element_bytes: int) -> None:
    """Samples add up, and none is larger than its dense bytes; a mask exists wherever gradients use one."""
    dense = elements * element_bytes
    found = wire_bytes(dense, samples, codec, ratio, element_bytes)
    assert found == samples * wire_bytes(dense, 1, codec, ratio, element_bytes) <= samples * dense
    if effective_codec(FORWARD_MASK, elements, ratio, element_bytes) != DENSE:
        assert effective_codec(TOP_K, elements, ratio, element_bytes) == TOP_K


@given(st.integers(1, 10**6), st.floats(1.0, 1e5))
def test_indices_take_few_bits(elements: int, ratio: float) -> None:
    """No index takes more than 2 + log2(elements / kept) bits, and all take no fewer than there are choices for."""
    kept = kept_elements(elements, ratio)
    bits = index_format(elements, kept).bits
    assert bits <= kept * (2 + math.log2(elements / kept)) + 1e-6
    choices = math.lgamma(elements + 1) - math.lgamma(kept + 1) - math.lgamma(elements - kept + 1)
    assert bits >= choices / math.log(2) - 1e-3


@pytest.mark.parametrize("ratio", [1.0, 1.5, 2.0, 3.9, 4.0, 10.0, 64.0, 100.0, 777.0, 1e5])
def test_the_coefficient_is_that_of_large_samples(ratio: float) -> None:
    """Bytes of a kept element, as planners use them, are those of a large message."""
    elements = 10**8
    kept = kept_elements(elements, ratio)
    size = 2 * kept + index_format(elements, kept).size_bytes if ratio > 1 else 2.125 * elements
    assert bytes_per_kept_element(TOP_K, ratio) == pytest.approx(size / kept, rel=1e-3)
    assert bytes_per_kept_element(FORWARD_MASK, ratio) == 2.0


@pytest.mark.parametrize(
    ("codec", "ratio", "words"),
    [
        ("zip", 1.0, "codec: 'zip' is not known; allowed are dense, fp16, bf16, int8, int4, int8-hadamard"),
        (TOP_K, 0.0, "codec: ratio must be a number above 0"),
        (TOP_K, float("nan"), "codec: ratio must be a number above 0"),
    ],
)
def test_what_is_no_codec_is_refused(codec: str, ratio: float, words: str) -> None:
    """Unknown codecs and bad ratios are refused with what is allowed."""
    with pytest.raises(Refused, match=words):
        wire_bytes(100, 1, codec, ratio)
