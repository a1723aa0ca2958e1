"""Messages in pieces: where a message would be larger than a link takes at once, or than pacing lets pass at once."""

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from fleetune.links.buffer import empty_buffer

Key = TypeVar("Key", bound=Hashable)


@dataclass(slots=True)
class _Partial:
    """The pieces of one message that have come, from the first one on."""

    header: Mapping[str, Any]
    """Of the first piece."""
    count: int
    left_bytes: int
    """Of the tensors that the header describes; pieces beyond them are not kept."""
    came: int = 0
    slices: list[memoryview] = field(default_factory=list)


class PartialMessages(Generic[Key]):
    """Messages that have come in part.

    A piece that was lost with its connection takes the whole message with it: what comes of it later is ignored. The
    loss itself is found by the numbers of the link's messages, and has its consequences there.
    """

    def __init__(self, size_bytes: Callable[[Mapping[str, Any]], int]) -> None:
        """size_bytes: how many bytes the tensors have that a header describes."""
        self._size_bytes = size_bytes
        self._partial: dict[Key, _Partial] = {}

    def __len__(self) -> int:
        return len(self._partial)

    def add(
        self, key: Key, header: Mapping[str, Any], parts: list[memoryview]
    ) -> tuple[Mapping[str, Any], list[memoryview]] | None:
        """Add a piece; once the message is whole, return the header of its first piece and the slices of all.

        ValueError, KeyError or TypeError if the header says nothing sensible of a piece, ValueError if more comes than
        the first one described.
        """
        number, count = header.get("piece", (0, 1))
        if not 0 <= number < count:
            raise ValueError(f"piece {number} of {count}")
        if count == 1:
            return header, parts
        if number == 0:
            self._partial[key] = _Partial(header, count, self._size_bytes(header))
        partial = self._partial.get(key)
        if partial is None:
            return None
        if (number, count) != (partial.came, partial.count):
            del self._partial[key]
            return None
        partial.left_bytes -= sum(part.nbytes for part in parts)
        if partial.left_bytes < 0:
            del self._partial[key]
            raise ValueError(f"more bytes came than the {self._size_bytes(partial.header)} announced")
        partial.slices += parts
        partial.came += 1
        if partial.came < count:
            return None
        del self._partial[key]
        return partial.header, partial.slices

    def drop(self, is_old: Callable[[Key], bool]) -> None:
        """Drop the messages that nobody will ask for any more."""
        self._partial = {key: partial for key, partial in self._partial.items() if not is_old(key)}


def split_into_pieces(parts: Sequence[memoryview], limit_bytes: int) -> Iterator[tuple[memoryview, ...]]:
    """Yield the parts of each message: the bytes of `parts` in order, at most `limit_bytes` a message, at least one."""
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


def join_pieces(slices: Sequence[memoryview], sizes: Sequence[int]) -> list[memoryview]:
    """Return parts of these sizes, joined from the slices of all pieces; ValueError if the totals differ."""
    total = sum(part.nbytes for part in slices)
    if min(sizes, default=0) < 0 or sum(sizes) != total:
        raise ValueError(f"{total} bytes came, {sum(sizes)} were announced")
    parts = [empty_buffer(size) for size in sizes]
    rest = iter(slices)
    source = memoryview(b"")
    for part in parts:
        filled = 0
        while filled < part.nbytes:
            source = source or next(rest)
            size = min(source.nbytes, part.nbytes - filled)
            part[filled : filled + size] = source[:size]
            filled, source = filled + size, source[size:]
    return parts
