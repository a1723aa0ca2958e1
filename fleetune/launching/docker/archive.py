"""Folders as streams of tar, the only form in which files enter and leave containers that cannot see this machine.

Never more of it in memory than a piece of one file. What is packed does not depend on this machine's users and modes;
what is unpacked comes from a container, so nothing in it can reach beyond its folder.
"""

import os
import secrets
import shutil
import stat
import tarfile
from collections.abc import Iterable, Iterator
from errno import ENOSPC, ENOTDIR
from pathlib import Path, PurePosixPath

from fleetune.contracts.record import record
from fleetune.errors import Refused, TryAgain
from fleetune.filesystem import leaves_folder
from fleetune.launching.docker.tar_stream import PIECE_BYTES, Damaged, TarStream

__all__ = ["OWNER", "END", "Entry", "entries", "folder_head", "pack", "unpack"]

OWNER = 10001
"""User and group of our images."""
RESERVE_BYTES = 1 << 28
"""What a container's files leave free of the disk."""
END = bytes(2 * tarfile.BLOCKSIZE)
FILE_MODE, FOLDER_MODE = 0o644, 0o755


@record
class Entry:
    """A file or folder to be packed, under a name relative to what is packed."""

    path: Path
    name: PurePosixPath
    is_folder: bool


def entries(folder: Path) -> tuple[Entry, ...]:
    """All that is in a folder, by name, with links followed within it (and in the hub's cache); Refused when something
    else is there."""
    if not folder.is_dir():
        raise Refused(f"{folder} is to be carried to another engine, and is no folder: only folders are")
    return tuple(_inside(folder, PurePosixPath(), (os.path.realpath(folder),), folder))


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

    Refused, before it is written, for whatever would lie outside of `folder`, is no file or folder, or is too much;
    TryAgain when the stream ends too soon. What has been written until then stays.
    """
    folder.mkdir(parents=True, exist_ok=True)
    stream = TarStream(pieces, str(folder))
    try:
        for member in stream.members():
            parts = member.parts[1:]  # the first names the folder itself
            if not parts:
                continue
            _make(folder, parts if member.is_folder else parts[:-1])
            if not member.is_folder:
                _write(stream, member.bytes, folder.joinpath(*parts))
    except Damaged as error:
        raise TryAgain(f"{folder}: what came from its container ended too soon, or was damaged ({error})") from None


def _inside(place: Path, name: PurePosixPath, above: tuple[str, ...], folder: Path) -> Iterator[Entry]:
    for path in sorted(place.iterdir()):
        inner = name / path.name
        try:
            mode = path.stat().st_mode
            if path.is_symlink() and leaves_folder(path, folder):
                raise Refused(f"{path} cannot be carried to another engine: it is a link that leads out of {folder}")
        except OSError as error:
            raise Refused(f"{path} cannot be carried to another engine ({error.strerror})") from None
        if stat.S_ISDIR(mode):
            real = os.path.realpath(path)
            if real in above:
                raise Refused(f"{path} cannot be carried to another engine: it leads back to {real}, which it is in")
            yield Entry(path=path, name=inner, is_folder=True)
            yield from _inside(path, inner, (*above, real), folder)
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


def _make(folder: Path, parts: tuple[str, ...]) -> None:
    """Make a folder in `folder` by way of folders alone: a link here would lead elsewhere."""
    for part in parts:
        folder /= part
        try:
            folder.mkdir(exist_ok=True)
            if folder.is_symlink():
                raise NotADirectoryError(ENOTDIR, os.strerror(ENOTDIR))
        except OSError as error:
            raise _unwritten(folder, error) from None


def _write(stream: TarStream, size: int, target: Path) -> None:
    """Write the content of the newest member beside `target`, and move it there once it is whole."""
    aside = target.with_name(f".{secrets.token_hex(8)}.part")
    try:
        if size + RESERVE_BYTES > shutil.disk_usage(target.parent).free:
            raise OSError(ENOSPC, os.strerror(ENOSPC))
        with aside.open("xb") as file:
            for piece in stream.content():
                file.write(piece)
        aside.replace(target)
    except OSError as error:
        raise _unwritten(target, error) from None
    finally:
        aside.unlink(missing_ok=True)


def _unwritten(target: Path, error: OSError) -> TryAgain:
    return TryAgain(f"{target} could not be written ({error.strerror}): make room, or remove what is there")
