"""Bytes on the wire for each codec."""

import pytest

from fleetune.contracts.plan import DENSE, TOP_K, wire_bytes
from fleetune.errors import Refused


@pytest.mark.parametrize(
    ("dense_bytes", "ratio", "wire"),
    [
        (4000, 1.0, 4000),
        (4000, 1.2, 4000),
        (4000, 1.999, 4000),
        (4000, 2.0, 4000),
        (4000, 2.01, 3984),
        (4000, 100.0, 80),
        (4000, 1e9, 8),
        (0, 100.0, 0),
        (4, 100.0, 4),
        (12, 100.0, 8),
        (6, 2.5, 6),
        (9, 2.5, 9),
        (17, 5.0, 8),
    ],
)
def test_top_k_is_a_value_and_an_index_for_each_kept_element(dense_bytes: int, ratio: float, wire: int) -> None:
    """Top-k sends 8 bytes for each of ceil(elements / ratio) elements, never more than dense, at least one element of a
    non-empty tensor."""
    assert wire_bytes(dense_bytes, TOP_K, ratio) == wire
    assert wire_bytes(dense_bytes, DENSE, ratio) == dense_bytes


@pytest.mark.parametrize(
    ("codec", "ratio", "words"),
    [
        ("zip", 1.0, "codec: 'zip' is not known; allowed are dense, top-k"),
        (TOP_K, 0.0, "codec: ratio must be a number above 0"),
        (TOP_K, float("nan"), "codec: ratio must be a number above 0"),
    ],
)
def test_what_is_no_codec_is_refused(codec: str, ratio: float, words: str) -> None:
    """Unknown codecs and bad ratios are refused with what is allowed."""
    with pytest.raises(Refused, match=words):
        wire_bytes(100, codec, ratio)
