"""Reads a tar stream that nobody vouches for: files and folders, everything bounded before it is looked at.

Python's tarfile is set aside for this direction: it reads extended headers of any size into memory, searches them in
quadratic time, and fills the holes of sparse files.
"""

import re
import tarfile
from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import PurePosixPath

from fleetune.contracts.record import record
from fleetune.errors import Refused

PIECE_BYTES = 1 << 20
MOST_MEMBERS = 100_000
MOST_BYTES = 1 << 40
"""Of all files together."""
MOST_HEADER_BYTES = 1 << 16
"""Of an extended header: those of engines hold a long name and some attributes."""
MOST_NAME_BYTES, MOST_PART_BYTES = 4096, 255
MOST_TRAILING_BYTES = 1 << 20
PAX, GNU_NAME, FILES = b"x", b"L", (tarfile.REGTYPE, tarfile.AREGTYPE)
PAX_FIELD = re.compile(rb"(\d{1,6}) ([^=]{1,256})=")
ENCODING, ERRORS = "utf-8", "surrogateescape"


class Damaged(Exception):
    """The stream ends too soon, or is no tar; str() says which."""


@record
class Member:
    """A file or folder, by the parts of its name."""

    parts: tuple[str, ...]
    is_folder: bool
    bytes: int


class TarStream:
    """Members one after the other; the content of each is read, or skipped, before the next."""

    def __init__(self, pieces: Iterable[bytes], owner: str) -> None:
        """`owner` opens the sentence of a refusal."""
        self._pieces = iter(pieces)
        self._owner = owner
        self._piece, self._at = b"", 0
        self._left = self._padding = self._total = 0

    def members(self) -> Iterator[Member]:
        """Refused for what is no file or folder, leads out of its folder, or is too much; Damaged at a bad end."""
        said: dict[str, str] = {}
        for _ in range(2 * MOST_MEMBERS):
            self._skip()
            block = self._take(tarfile.BLOCKSIZE)
            if not any(block):
                return self._end()
            head = self._head(block)
            if head.type in (PAX, GNU_NAME):
                said |= self._extension(head)
                continue
            yield self._member(head, said)
            said = {}
        raise self._refused(f"more than {MOST_MEMBERS} files")

    def content(self) -> Iterator[bytes]:
        """What is left of the content of the newest member."""
        while self._left:
            piece = self._take(min(self._left, PIECE_BYTES))
            self._left -= len(piece)
            yield piece

    def _skip(self) -> None:
        for _ in self.content():
            pass
        self._take(self._padding)
        self._padding = 0

    def _take(self, size: int) -> bytes:
        parts = []
        while size > 0:
            if self._at == len(self._piece):
                self._piece, self._at = self._next(), 0
            parts.append(self._piece[self._at : self._at + size])
            self._at += len(parts[-1])
            size -= len(parts[-1])
        return b"".join(parts)

    def _next(self) -> bytes:
        for piece in self._pieces:
            if piece:
                return piece
        raise Damaged("no end mark")

    def _end(self) -> None:
        """Without a look at the whole end mark, a stream that was cut between two files would look whole."""
        length = 0
        for piece in chain([self._piece[self._at :]], self._pieces):
            length += len(piece)
            if any(piece) or length > MOST_TRAILING_BYTES:
                raise Damaged("something comes after its end mark")
        if length < tarfile.BLOCKSIZE:
            raise Damaged("no end mark")

    def _head(self, block: bytes) -> tarfile.TarInfo:
        try:
            return tarfile.TarInfo.frombuf(block, ENCODING, ERRORS)
        except tarfile.HeaderError as error:
            raise Damaged(str(error)) from None

    def _extension(self, head: tarfile.TarInfo) -> dict[str, str]:
        """What an extended header says of the member after it: its `path` or `size`, where these are too long."""
        if not 0 <= head.size <= MOST_HEADER_BYTES:
            raise self._refused(f"a header of {head.size} bytes (at most {MOST_HEADER_BYTES})")
        raw = self._take(head.size + -head.size % tarfile.BLOCKSIZE)[: head.size]
        if head.type == GNU_NAME:
            return {"path": _text(raw.removesuffix(b"\0"))}
        found, place = {}, 0
        while place < len(raw):
            field = PAX_FIELD.match(raw, place)
            end = place + int(field[1]) if field else 0
            if field is None or end <= field.end() or raw[end - 1 : end] != b"\n":
                raise Damaged("a header cannot be read")
            key = _text(field[2])
            if key.startswith("GNU.sparse"):
                raise self._refused("a sparse file")
            found[key] = _text(raw[field.end() : end - 1])
            place = end
        return {key: value for key, value in found.items() if key in ("path", "size")}

    def _member(self, head: tarfile.TarInfo, said: dict[str, str]) -> Member:
        name, size = said.get("path", head.name), head.size
        if "size" in said:
            if not re.fullmatch("[0-9]{1,18}", said["size"]):
                raise Damaged("a header cannot be read")
            size = int(said["size"])
        is_folder = head.type == tarfile.DIRTYPE
        if not is_folder and head.type not in FILES:
            raise self._refused(f"{name[:80]!r}, which is no file or folder")
        path = PurePosixPath(name)
        parts = [len(part.encode(ENCODING, ERRORS)) for part in path.parts]
        if "\0" in name or sum(parts) + len(parts) > MOST_NAME_BYTES or any(part > MOST_PART_BYTES for part in parts):
            raise self._refused(f"a file whose name no file can have ({name[:80]!r})")
        if path.is_absolute() or ".." in path.parts:
            raise self._refused(f"{name[:80]!r}, which may lead outside of it")
        self._total += size
        if size < 0 or (is_folder and size) or self._total > MOST_BYTES:
            raise self._refused(f"{name[:80]!r} with {size} bytes (at most {MOST_BYTES} in all)")
        self._left, self._padding = size, -size % tarfile.BLOCKSIZE
        return Member(parts=path.parts, is_folder=is_folder, bytes=size)

    def _refused(self, what: str) -> Refused:
        return Refused(f"{self._owner}: its container holds {what}; it was not taken")


def _text(raw: bytes) -> str:
    return raw.decode(ENCODING, ERRORS)
