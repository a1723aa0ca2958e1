"""Folders in which others may change names at any moment, as a container may in what it can write.

Everything is named relative to a descriptor of its folder, and no link is followed: a name that was swapped meanwhile
leads nowhere else. New files get random names that nothing had before, until they are whole.
"""

import errno
import fcntl
import os
import secrets
import shutil
import stat
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


@contextmanager
def opened(folder: Path) -> Iterator[int]:
    """Descriptor of a folder of our own, to which a link may lead."""
    descriptor = os.open(folder, FOLDER)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


@contextmanager
def opened_within(top: int, parts: Sequence[str], *, make: bool = False) -> Iterator[int]:
    """Descriptor of a folder below that of descriptor `top`; OSError (ENOTDIR) where a part is a link or a file."""
    current = os.dup(top)
    try:
        for part in parts:
            if make:
                with suppress(FileExistsError):
                    os.mkdir(part, dir_fd=current)
            below = os.open(part, FOLDER | os.O_NOFOLLOW, dir_fd=current)
            os.close(current)
            current = below
        yield current
    finally:
        os.close(current)


@contextmanager
def new_file(folder: int, name: str, mode: int = 0o666) -> Iterator[IO[bytes]]:
    """A file to be written, which gets its `name` in the folder of this descriptor once the body has succeeded.

    What had the name is replaced, be it a link. File and name are on disk afterwards; after an error nothing is left.
    It is locked as long as it is written, so that nobody takes it for the rest of a killed process
    (fleetune/store/partial_files.py).
    """
    part, descriptor = _new_part(folder, mode)
    try:
        with open(descriptor, "wb") as file:
            yield file
            file.flush()
            os.fsync(descriptor)
            os.rename(part, name, src_dir_fd=folder, dst_dir_fd=folder)
        sync_folder(folder)
    except BaseException:
        with suppress(FileNotFoundError):
            os.unlink(part, dir_fd=folder)
        raise


def sync_folder(folder: int) -> None:
    """Wait until the names in the folder of a descriptor are on disk, on file systems that can."""
    try:
        os.fsync(folder)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise


def take_files(names: Iterable[str], source: Path, target: Path) -> None:
    """Move files from a folder that others may write into one that they may not, on the same disk.

    Names that `source` lacks are left out; it may not exist. OSError (EINVAL) for a name that is no plain file, which
    is deleted: nothing has been read of it.
    """
    try:
        there = os.open(source, FOLDER | os.O_NOFOLLOW)
    except FileNotFoundError:
        return
    try:
        with opened(target) as here:
            for name in names:
                with suppress(FileNotFoundError):
                    os.rename(name, name, src_dir_fd=there, dst_dir_fd=here)
                    if not stat.S_ISREG(os.stat(name, dir_fd=here, follow_symlinks=False).st_mode):
                        remove(target / name)
                        raise OSError(errno.EINVAL, "not a plain file", str(source / name))
                    os.chmod(name, 0o644, dir_fd=here)  # nobody can put a link there
    finally:
        os.close(there)


def remove(path: Path) -> None:
    """Delete a file, a link itself, or a folder with all that it holds; no error if there is none."""
    with suppress(FileNotFoundError):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)  # it works on descriptors, too
        else:
            path.unlink()


def _new_part(folder: int, mode: int) -> tuple[str, int]:
    """Create and lock a file; again if somebody has deleted it before it was locked."""
    while True:
        part = f".{secrets.token_hex(16)}.part"
        descriptor = os.open(part, NEW_FILE, mode, dir_fd=folder)
        with suppress(OSError):  # file systems without locks
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.fstat(descriptor).st_nlink:
            return part, descriptor
        os.close(descriptor)
