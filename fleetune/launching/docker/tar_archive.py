"""Folders as tar streams, the form in which files enter and leave containers that cannot see this machine.

At most a piece of one file is in memory. What is packed does not depend on this machine's users and modes. What is
unpacked comes from an untrusted container: `TarReader` bounds everything before it is read, and nothing can be written
outside the target folder. Python's tarfile is not used for reading: it reads extended headers of any size into memory,
searches them in quadratic time, and fills the holes of sparse files.
"""

import os
import re
import stat
import tarfile
from collections.abc import Iterable, Iterator
from errno import ENOSPC
from itertools import chain
from pathlib import Path, PurePosixPath

from fleetune.contracts.record import record
from fleetune.errors import Refused, TryAgain
from fleetune.exposed_folders import new_file, opened, opened_within
from fleetune.filesystem import leaves_folder

__all__ = ["END", "IMAGE_USER", "ArchiveEntry", "folder_header", "list_entries", "pack", "unpack"]

IMAGE_USER = 10001
"""User and group id of our images."""
DISK_RESERVE_BYTES = 1 << 28
"""Disk space that unpacked files must leave free."""
END = bytes(2 * tarfile.BLOCKSIZE)
FILE_MODE, FOLDER_MODE = 0o644, 0o755
PIECE_BYTES = 1 << 20
MAX_MEMBERS = 100_000
MAX_TOTAL_BYTES = 1 << 40
"""Limit of the size of all files together."""
MAX_HEADER_BYTES = 1 << 16
"""Limit of an extended header; those of engines hold a long name and some attributes."""
MAX_NAME_BYTES, MAX_PART_BYTES = 4096, 255
MAX_TRAILING_BYTES = 1 << 20
PAX, GNU_NAME, FILES = b"x", b"L", (tarfile.REGTYPE, tarfile.AREGTYPE)
PAX_FIELD = re.compile(rb"(\d{1,6}) ([^=]{1,256})=")
ENCODING, ERRORS = "utf-8", "surrogateescape"


@record
class ArchiveEntry:
    """A file or folder to be packed; `name` is relative to the packed folder."""

    path: Path
    name: PurePosixPath
    is_folder: bool


def list_entries(folder: Path) -> tuple[ArchiveEntry, ...]:
    """Files and folders in a folder, sorted by name; links are followed within it and in the hub's cache.

    Refused when it holds anything else.
    """
    if not folder.is_dir():
        raise Refused(f"{folder} cannot be copied to another engine: it is not a folder")
    return tuple(_walk(folder, PurePosixPath(), (os.path.realpath(folder),), folder))


def pack(entries: Iterable[ArchiveEntry], under: str) -> Iterator[bytes]:
    """Pieces of a tar stream, without END, of entries below the folder name `under`; TryAgain when a file changes."""
    yield folder_header(under)
    for entry in entries:
        name = f"{under}/{entry.name}"
        yield from (folder_header(name),) if entry.is_folder else _pack_file(entry.path, name)


def folder_header(name: str) -> bytes:
    """Tar header of a folder that the images' user owns."""
    return _header(name, tarfile.DIRTYPE, FOLDER_MODE)


def unpack(pieces: Iterable[bytes], folder: Path) -> None:
    """Write a tar stream of one folder, whatever its name, over `folder`; each file appears whole or not at all.

    Refused for a member that would lie outside `folder`, is neither file nor folder, or exceeds a bound; TryAgain when
    the stream is cut. Members written before that stay.
    """
    folder.mkdir(parents=True, exist_ok=True)
    reader = TarReader(pieces, str(folder))
    try:
        with opened(folder) as top:
            for member in reader.members():
                parts = member.parts[1:]  # the first names the folder itself
                if not parts:
                    continue
                try:
                    with opened_within(top, parts if member.is_folder else parts[:-1], make=True) as inner:
                        if not member.is_folder:
                            _write(reader, member.bytes, inner, parts[-1])
                except OSError as error:
                    raise _write_error(folder.joinpath(*parts), error) from None
    except DamagedTar as error:
        raise TryAgain(f"{folder}: the transfer from its container was cut off or damaged ({error})") from None


def _walk(current: Path, name: PurePosixPath, ancestors: tuple[str, ...], folder: Path) -> Iterator[ArchiveEntry]:
    """Entries below `current`, called `name` in the archive; `ancestors` are real paths, to detect cycles of links."""
    for path in sorted(current.iterdir()):
        inner = name / path.name
        try:
            mode = path.stat().st_mode
            if path.is_symlink() and leaves_folder(path, folder):
                raise Refused(f"{path} cannot be copied to another engine: it is a link that leads out of {folder}")
        except OSError as error:
            raise Refused(f"{path} cannot be copied to another engine ({error.strerror})") from None
        if stat.S_ISDIR(mode):
            real = os.path.realpath(path)
            if real in ancestors:
                raise Refused(f"{path} cannot be copied to another engine: it leads back to {real}, which it is in")
            yield ArchiveEntry(path=path, name=inner, is_folder=True)
            yield from _walk(path, inner, (*ancestors, real), folder)
        elif stat.S_ISREG(mode):
            yield ArchiveEntry(path=path, name=inner, is_folder=False)
        else:
            raise Refused(f"{path} cannot be copied to another engine: it is neither a file nor a folder")


def _pack_file(path: Path, name: str) -> Iterator[bytes]:
    try:
        with path.open("rb") as file:
            status = os.fstat(file.fileno())
            yield _header(name, tarfile.REGTYPE, FILE_MODE, status.st_size, int(status.st_mtime))
            missing = status.st_size
            while missing:
                piece = file.read(min(missing, PIECE_BYTES))
                if not piece:
                    raise TryAgain(f"{path} became shorter while it was copied to another engine: leave it alone")
                missing -= len(piece)
                yield piece
            yield bytes(-status.st_size % tarfile.BLOCKSIZE)
    except OSError as error:
        raise TryAgain(f"{path} could not be read while it was copied to another engine ({error.strerror})") from None


def _header(name: str, kind: bytes, mode: int, size: int = 0, mtime: int = 0) -> bytes:
    """Tar header; file times are kept, because compiled Python matches its source by time."""
    header = tarfile.TarInfo(name)
    header.type, header.mode, header.size, header.mtime = kind, mode, size, mtime
    header.uid = header.gid = IMAGE_USER
    return header.tobuf(tarfile.GNU_FORMAT, ENCODING, ERRORS)


def _write(reader: "TarReader", size: int, folder: int, name: str) -> None:
    """Write the content of the current member beside its name in a folder, which it gets once it is whole."""
    room = os.fstatvfs(folder)
    if size + DISK_RESERVE_BYTES > room.f_bavail * room.f_frsize:
        raise OSError(ENOSPC, os.strerror(ENOSPC))
    with new_file(folder, name) as file:
        for piece in reader.content():
            file.write(piece)


def _write_error(target: Path, error: OSError) -> TryAgain:
    return TryAgain(f"{target} could not be written ({error.strerror}): make room, or remove what is there")


class DamagedTar(Exception):
    """The stream ends too soon, or is no tar; str() says which."""


@record
class TarMember:
    """A file or folder in a tar stream; `parts` of its name."""

    parts: tuple[str, ...]
    is_folder: bool
    bytes: int


class TarReader:
    """Reads members one after the other; the content of each is read, or skipped, before the next."""

    def __init__(self, pieces: Iterable[bytes], owner: str) -> None:
        """`owner` begins the message of a refusal."""
        self._pieces = iter(pieces)
        self._owner = owner
        self._piece, self._at = b"", 0
        self._left = self._padding = self._total = 0

    def members(self) -> Iterator[TarMember]:
        """Members in order, each before its content.

        Refused for one that is neither file nor folder, leads out of its folder, or exceeds a bound; DamagedTar where
        the stream is cut or malformed.
        """
        extended: dict[str, str] = {}
        for _ in range(2 * MAX_MEMBERS):
            self._skip()
            block = self._take(tarfile.BLOCKSIZE)
            if not any(block):
                return self._end()
            header = self._header(block)
            if header.type in (PAX, GNU_NAME):
                extended |= self._extension(header)
                continue
            yield self._member(header, extended)
            extended = {}
        raise self._refused(f"more than {MAX_MEMBERS} files")

    def content(self) -> Iterator[bytes]:
        """The rest of the content of the current member, in pieces."""
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
        raise DamagedTar("no end mark")

    def _end(self) -> None:
        """Check the whole end mark: a stream that was cut between two files would otherwise look whole."""
        length = 0
        for piece in chain([self._piece[self._at :]], self._pieces):
            length += len(piece)
            if any(piece) or length > MAX_TRAILING_BYTES:
                raise DamagedTar("something comes after its end mark")
        if length < tarfile.BLOCKSIZE:
            raise DamagedTar("no end mark")

    def _header(self, block: bytes) -> tarfile.TarInfo:
        try:
            return tarfile.TarInfo.frombuf(block, ENCODING, ERRORS)
        except tarfile.HeaderError as error:
            raise DamagedTar(str(error)) from None

    def _extension(self, header: tarfile.TarInfo) -> dict[str, str]:
        """The `path` or `size` of the next member, from an extended header, where they do not fit a plain one."""
        if not 0 <= header.size <= MAX_HEADER_BYTES:
            raise self._refused(f"a header of {header.size} bytes (at most {MAX_HEADER_BYTES})")
        raw = self._take(header.size + -header.size % tarfile.BLOCKSIZE)[: header.size]
        if header.type == GNU_NAME:
            return {"path": _text(raw.removesuffix(b"\0"))}
        found, start = {}, 0
        while start < len(raw):
            field = PAX_FIELD.match(raw, start)
            end = start + int(field[1]) if field else 0
            if field is None or end <= field.end() or raw[end - 1 : end] != b"\n":
                raise DamagedTar("a header cannot be read")
            key = _text(field[2])
            if key.startswith("GNU.sparse"):
                raise self._refused("a sparse file")
            found[key] = _text(raw[field.end() : end - 1])
            start = end
        return {key: value for key, value in found.items() if key in ("path", "size")}

    def _member(self, header: tarfile.TarInfo, extended: dict[str, str]) -> TarMember:
        name, size = extended.get("path", header.name), header.size
        if "size" in extended:
            if not re.fullmatch("[0-9]{1,18}", extended["size"]):
                raise DamagedTar("a header cannot be read")
            size = int(extended["size"])
        is_folder = header.type == tarfile.DIRTYPE
        if not is_folder and header.type not in FILES:
            raise self._refused(f"{name[:80]!r}, which is no file or folder")
        path = PurePosixPath(name)
        parts = [len(part.encode(ENCODING, ERRORS)) for part in path.parts]
        if "\0" in name or sum(parts) + len(parts) > MAX_NAME_BYTES or any(part > MAX_PART_BYTES for part in parts):
            raise self._refused(f"a file with an invalid name ({name[:80]!r})")
        if path.is_absolute() or ".." in path.parts:
            raise self._refused(f"{name[:80]!r}, which may lead outside of it")
        self._total += size
        if size < 0 or (is_folder and size) or self._total > MAX_TOTAL_BYTES:
            raise self._refused(f"{name[:80]!r} with {size} bytes (at most {MAX_TOTAL_BYTES} in all)")
        self._left, self._padding = size, -size % tarfile.BLOCKSIZE
        return TarMember(parts=path.parts, is_folder=is_folder, bytes=size)

    def _refused(self, what: str) -> Refused:
        return Refused(f"{self._owner}: its container holds {what}; it was not copied")


def _text(raw: bytes) -> str:
    return raw.decode(ENCODING, ERRORS)
