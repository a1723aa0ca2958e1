"""Tensors larger than a message."""

import pytest

from fleetune.training.pieces import joined, pieces

PARTS = [b"", b"abcdefg", b"h", b"", b"ijklmnop", b"q", b""]


@pytest.mark.parametrize("limit_bytes", range(1, 20))
def test_parts_come_out_as_they_went_in(limit_bytes: int) -> None:
    """No message is over the limit, none but the last has room left, and joining gives the same parts."""
    cut = list(pieces([memoryview(part) for part in PARTS], limit_bytes))
    sizes = [sum(part.nbytes for part in piece) for piece in cut]
    assert max(sizes) <= limit_bytes and all(size == limit_bytes for size in sizes[:-1]) and sum(sizes) == 17
    slices = [part for piece in cut for part in piece]
    assert [bytes(part) for part in joined(slices, [len(part) for part in PARTS])] == PARTS


def test_nothing_is_one_message() -> None:
    """A message without tensors is still sent, once."""
    assert list(pieces([], 5)) == [()]
    assert joined([], []) == []


@pytest.mark.parametrize("sizes", [[2], [4], [], [5, -2], [1 << 60]])
def test_other_sizes_than_came_are_refused(sizes: list[int]) -> None:
    """Before any memory is taken for them."""
    with pytest.raises(ValueError, match="3 bytes came"):
        joined([memoryview(b"abc")], sizes)
