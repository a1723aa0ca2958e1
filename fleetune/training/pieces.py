"""Tensors larger than a message, as several messages."""

from collections.abc import Iterator, Sequence

import numpy as np


def pieces(parts: Sequence[memoryview], limit_bytes: int) -> Iterator[tuple[memoryview, ...]]:
    """The parts of each message: the bytes of `parts` in order, cut where a message is full; at least one message."""
    piece: list[memoryview] = []
    room = limit_bytes
    for part in parts:
        start = 0
        while part.nbytes - start > room:
            piece.append(part[start : start + room])
            start += room
            yield tuple(piece)
            piece, room = [], limit_bytes
        piece.append(part[start:])
        room -= part.nbytes - start
    yield tuple(piece)


def joined(slices: Sequence[memoryview], sizes: Sequence[int]) -> list[memoryview]:
    """Parts of these sizes out of the slices of all pieces; ValueError where they are not the same bytes in sum."""
    total = sum(part.nbytes for part in slices)
    if min(sizes, default=0) < 0 or sum(sizes) != total:
        raise ValueError(f"{total} bytes came, {sum(sizes)} were announced")
    parts = [np.empty(size, dtype=np.uint8).data.cast("B") for size in sizes]  # each aligned for its own dtype
    rest = iter(slices)
    source = memoryview(b"")
    for part in parts:
        place = 0
        while place < part.nbytes:
            source = source or next(rest)
            size = min(source.nbytes, part.nbytes - place)
            part[place : place + size] = source[:size]
            place, source = place + size, source[size:]
    return parts
