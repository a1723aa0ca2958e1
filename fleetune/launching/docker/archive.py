"""Folders as streams of tar, the only form in which files enter and leave containers that cannot see this machine.

Never more of it in memory than a piece of one file. What is packed does not depend on this machine's users and modes;
what is unpacked comes from a container, so nothing in it can reach beyond its folder.
"""

import os
import secrets
import stat
import tarfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path, PurePosixPath
from typing import IO

from fleetune.contracts.record import record
from fleetune.errors import Refused, TryAgain

__all__ = ["OWNER", "END", "Entry", "entries", "folder_head", "pack", "unpack"]

OWNER = 10001
"""User and group of our images."""
PIECE_BYTES = 1 << 20
END = bytes(2 * tarfile.BLOCKSIZE)
FILE_MODE, FOLDER_MODE = 0o644, 0o755


@record
class Entry:
    """A file or folder to be packed, under a name relative to what is packed."""

    path: Path
    name: PurePosixPath
    is_folder: bool


def entries(folder: Path) -> tuple[Entry, ...]:
    """All that is in a folder, by name, with links followed; Refused when something is neither file nor folder."""
    if not folder.is_dir():
        raise Refused(f"{folder} is to be carried to another engine, and is no folder: only folders are")
    return tuple(_inside(folder, PurePosixPath(), (os.path.realpath(folder),)))


def pack(found: Iterable[Entry], under: str) -> Iterator[bytes]:
    """Entries as pieces of a tar stream (without its END), all below the folder `under`; TryAgain when a file changes
    meanwhile."""
    yield folder_head(under)
    for entry in found:
        name = f"{under}/{entry.name}"
        yield from (folder_head(name),) if entry.is_folder else _packed(entry.path, name)


def folder_head(name: str) -> bytes:
    """The tar header of a folder that the images' user owns."""
    return _head(name, tarfile.DIRTYPE, FOLDER_MODE)


def unpack(pieces: Iterable[bytes], folder: Path) -> None:
    """Write a tar stream of one folder, whatever that was called, over `folder`; files appear there whole or not.

    Refused, before it is written, for whatever would lie or lead outside of `folder` or is no file, folder or link;
    TryAgain when the stream ends too soon. What has been written until then stays.
    """
    folder.mkdir(parents=True, exist_ok=True)
    reader = _Reader(pieces)
    try:
        with tarfile.open(fileobj=reader, mode="r|") as archive:  # type: ignore[call-overload]
            for member in archive:
                _unpack(archive, member, folder)
        if not reader.at_end():
            raise tarfile.ReadError("no end mark")
    except tarfile.TarError as error:
        raise TryAgain(f"{folder}: what came from its container ended too soon, or was damaged ({error})") from None


class _Reader:
    """Pieces as a file that can only be read."""

    def __init__(self, pieces: Iterable[bytes]) -> None:
        self._pieces = iter(pieces)
        self._rest = self._tail = b""

    def read(self, size: int) -> bytes:
        """At most `size` bytes; fewer only at the end."""
        parts, missing = [self._rest], size - len(self._rest)
        while missing > 0 and (piece := next(self._pieces, b"")):
            parts.append(piece)
            missing -= len(piece)
            self._tail = (self._tail + piece)[-len(END) :]
        whole = b"".join(parts)
        self._rest = whole[size:]
        return whole[:size]

    def at_end(self) -> bool:
        """Whether all of it ends as a tar stream should: without this, one cut between two files looks whole."""
        while self.read(PIECE_BYTES):
            pass
        return self._tail == END


def _inside(folder: Path, name: PurePosixPath, above: tuple[str, ...]) -> Iterator[Entry]:
    for path in sorted(folder.iterdir()):
        inner = name / path.name
        try:
            mode = path.stat().st_mode
        except OSError as error:
            raise Refused(f"{path} cannot be carried to another engine ({error.strerror})") from None
        if stat.S_ISDIR(mode):
            real = os.path.realpath(path)
            if real in above:
                raise Refused(f"{path} cannot be carried to another engine: it leads back to {real}, which it is in")
            yield Entry(path=path, name=inner, is_folder=True)
            yield from _inside(path, inner, (*above, real))
        elif stat.S_ISREG(mode):
            yield Entry(path=path, name=inner, is_folder=False)
        else:
            raise Refused(f"{path} cannot be carried to another engine: it is neither a file nor a folder")


def _packed(path: Path, name: str) -> Iterator[bytes]:
    try:
        with path.open("rb") as file:
            status = os.fstat(file.fileno())
            yield _head(name, tarfile.REGTYPE, FILE_MODE, status.st_size, int(status.st_mtime))
            missing = status.st_size
            while missing:
                piece = file.read(min(missing, PIECE_BYTES))
                if not piece:
                    raise TryAgain(f"{path} became shorter while it was carried to another engine: leave it alone")
                missing -= len(piece)
                yield piece
            yield bytes(-status.st_size % tarfile.BLOCKSIZE)
    except OSError as error:
        raise TryAgain(f"{path} could not be read while it was carried to another engine ({error.strerror})") from None


def _head(name: str, kind: bytes, mode: int, size: int = 0, mtime: int = 0) -> bytes:
    """Times of files are kept: compiled Python knows its source by them."""
    head = tarfile.TarInfo(name)
    head.type, head.mode, head.size, head.mtime = kind, mode, size, mtime
    head.uid = head.gid = OWNER
    return head.tobuf(tarfile.GNU_FORMAT, "utf-8", "surrogateescape")


def _unpack(archive: tarfile.TarFile, member: tarfile.TarInfo, folder: Path) -> None:
    parts = _within(member.name, folder)[1:]  # the first names the folder itself
    if not parts:
        return
    target = folder.joinpath(*parts)
    if member.isdir():
        target.mkdir(parents=True, exist_ok=True)
    elif member.isreg():
        content = archive.extractfile(member)
        assert content is not None
        _write(content, target)
    elif member.issym():
        _within(member.linkname, folder)
        _replace(target, lambda aside: aside.symlink_to(member.linkname))
    elif member.islnk():
        source = folder.joinpath(*_within(member.linkname, folder)[1:])
        _replace(target, lambda aside: os.link(source, aside, follow_symlinks=False))
    else:
        raise Refused(
            f"{folder}: its container holds {member.name}, which is no file, folder or link; it was not taken"
        )


def _within(name: str, folder: Path) -> tuple[str, ...]:
    """The parts of a name or of what a link leads to, which may only lead further down."""
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts:
        raise Refused(f"{folder}: its container holds {name!r}, which may lead outside of it; it was not taken")
    return path.parts


def _write(content: IO[bytes], target: Path) -> None:
    def fill(aside: Path) -> None:
        with aside.open("xb") as file:
            while piece := content.read(PIECE_BYTES):
                file.write(piece)

    _replace(target, fill)


def _replace(target: Path, make: Callable[[Path], object]) -> None:
    """Make something beside `target` and move it there."""
    target.parent.mkdir(parents=True, exist_ok=True)
    aside = target.with_name(f".{secrets.token_hex(8)}.part")
    try:
        make(aside)
        aside.replace(target)
    except OSError as error:
        raise TryAgain(
            f"{target} could not be written ({error.strerror}): make room, or remove what is there"
        ) from None
    finally:
        aside.unlink(missing_ok=True)
