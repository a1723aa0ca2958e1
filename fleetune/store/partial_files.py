"""Partial files and folders, named `.NAME.UUID.part` beside their final name until they are complete.

The process that writes a part holds flock(2) on it, so a part without a lock was left by a killed process and can be
collected. On file systems without folder locks, parts are never collected.
"""

import fcntl
import os
import shutil
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from fleetune.filesystem import sync

PART_PATTERN = ".*.part"


def part_path(whole: Path) -> Path:
    """Return a new name for a part of `whole`."""
    return whole.with_name(f".{whole.name}.{uuid.uuid4().hex}.part")


@contextmanager
def new_file(whole: Path) -> Iterator[Path]:
    """Create an empty part file; it is deleted at the end unless it was renamed."""
    with _new(whole, lambda part: part.touch(exist_ok=False)) as part:
        yield part


@contextmanager
def new_folder(whole: Path) -> Iterator[Path]:
    """Create an empty part folder; it is deleted at the end unless it was renamed."""
    with _new(whole, lambda part: part.mkdir()) as part:
        yield part


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Lock a file or folder; the lock survives renaming."""
    handle = os.open(path, os.O_RDONLY)
    try:
        _try_lock(handle)
        yield
    finally:
        os.close(handle)


def discard(whole: Path) -> None:
    """Delete a file or folder, which disappears at once by a rename; no error if it does not exist."""
    try:
        handle = os.open(whole, os.O_RDONLY)
    except FileNotFoundError:
        return
    try:
        _try_lock(handle)
        doomed = part_path(whole)
        whole.rename(doomed)
        _delete(doomed)
        sync(whole.parent)
    except FileNotFoundError:
        return  # another process was first
    finally:
        os.close(handle)


def collect(folder: Path) -> None:
    """Delete the parts in a folder that no living process holds."""
    for part in abandoned(folder):
        _delete(part)


def abandoned(folder: Path) -> Iterator[Path]:
    """Yield the parts in a folder that no living process holds; each is locked while the caller has it."""
    for part in folder.glob(PART_PATTERN):
        try:
            handle = os.open(part, os.O_RDONLY)
        except OSError:
            continue
        try:
            if _try_lock(handle):
                yield part
        finally:
            os.close(handle)


@contextmanager
def _new(whole: Path, make: Callable[[Path], None]) -> Iterator[Path]:
    part, handle = _create(whole, make)
    try:
        yield part
    finally:
        _delete(part)
        os.close(handle)


def _create(whole: Path, make: Callable[[Path], None]) -> tuple[Path, int]:
    """Create a part and return it with its locked handle; retry if it was collected before it was locked."""
    while True:
        part = part_path(whole)
        make(part)
        try:
            handle = os.open(part, os.O_RDONLY)
        except FileNotFoundError:
            continue
        taken = _try_lock(handle)
        if taken is None or (taken and part.exists()):
            return part, handle
        os.close(handle)


def _try_lock(handle: int) -> bool | None:
    """Lock an open file or folder; False if another process holds it, None if the file system has no locks."""
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return None
    return True


def _delete(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
