"""Files and folders that are not whole yet: `.NAME.UUID.part` beside the name they will get.

Their maker holds flock(2) on the part itself, so the kernel tells whether the maker lives; what nobody holds was left
by a killed process and may be collected. Where a file system cannot lock a folder, nothing of it is ever collected.
"""

import errno
import fcntl
import os
import shutil
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

PATTERN = ".*.part"


def name_of(whole: Path) -> Path:
    """A new name for a part of `whole`."""
    return whole.with_name(f".{whole.name}.{uuid.uuid4().hex}.part")


@contextmanager
def new_file(whole: Path) -> Iterator[Path]:
    """An empty part file of this process; deleted at the end unless it was renamed."""
    with _new(whole, lambda part: part.touch(exist_ok=False)) as part:
        yield part


@contextmanager
def new_folder(whole: Path) -> Iterator[Path]:
    """An empty part folder of this process; deleted at the end unless it was renamed."""
    with _new(whole, lambda part: part.mkdir()) as part:
        yield part


@contextmanager
def held(path: Path) -> Iterator[None]:
    """Hold a file or folder, under whatever name it is renamed to meanwhile."""
    handle = os.open(path, os.O_RDONLY)
    try:
        _take(handle)
        yield
    finally:
        os.close(handle)


def discard(whole: Path) -> None:
    """Delete a file or folder: its name is gone at once, its bytes one by one; no error when there is none."""
    try:
        handle = os.open(whole, os.O_RDONLY)
    except FileNotFoundError:
        return
    try:
        _take(handle)
        doomed = name_of(whole)
        whole.rename(doomed)
        _delete(doomed)
        sync(whole.parent)
    except FileNotFoundError:
        return  # another process was first
    finally:
        os.close(handle)


def collect(folder: Path) -> None:
    """Delete the parts in a folder whose makers are gone."""
    for part in folder.glob(PATTERN):
        try:
            handle = os.open(part, os.O_RDONLY)
        except OSError:
            continue
        try:
            if _take(handle):
                _delete(part)
        finally:
            os.close(handle)


def sync(path: Path) -> None:
    """Have the disk keep a file's content, or the names in a folder."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    except OSError as error:
        if not (path.is_dir() and error.errno in (errno.EINVAL, errno.ENOTSUP)):  # some file systems have no such thing
            raise
    finally:
        os.close(handle)


@contextmanager
def _new(whole: Path, make: Callable[[Path], None]) -> Iterator[Path]:
    part, handle = _made(whole, make)
    try:
        yield part
    finally:
        _delete(part)
        os.close(handle)


def _made(whole: Path, make: Callable[[Path], None]) -> tuple[Path, int]:
    """A new part and the handle that holds it; one that was collected before it was held is made again."""
    while True:
        part = name_of(whole)
        make(part)
        try:
            handle = os.open(part, os.O_RDONLY)
        except FileNotFoundError:
            continue
        taken = _take(handle)
        if taken is None or (taken and part.exists()):
            return part, handle
        os.close(handle)


def _take(handle: int) -> bool | None:
    """Take the lock of an open file or folder; False while another has it, None where there are no such locks."""
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
