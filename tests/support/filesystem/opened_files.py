"""Which files of a folder any process opens, as the kernel tells (inotify)."""

import ctypes
import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

IN_ACCESS, IN_OPEN, IN_ISDIR = 0x1, 0x20, 0x40000000
HEADER = struct.Struct("iIII")


class OpenedFiles:
    """Paths of the files below a folder that were opened so far."""

    def __init__(self, inotify: int, folders: dict[int, Path]) -> None:
        self._inotify, self._folders, self._found = inotify, folders, set[Path]()

    def found(self) -> set[Path]:
        """Return them all."""
        while True:
            try:
                events = os.read(self._inotify, 1 << 16)
            except BlockingIOError:
                return self._found
            while events:
                watch, mask, _, length = HEADER.unpack_from(events)
                name = events[HEADER.size : HEADER.size + length].rstrip(b"\0")
                if not mask & IN_ISDIR:
                    self._found.add(self._folders[watch] / os.fsdecode(name))
                events = events[HEADER.size + length :]


@contextmanager
def opened_files(top: Path) -> Iterator[OpenedFiles]:
    """Watch all folders that are below `top` now, by whichever path and process their files are opened."""
    libc = ctypes.CDLL(None, use_errno=True)
    inotify = libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
    if inotify < 0:
        raise OSError(ctypes.get_errno(), "inotify_init1")
    try:
        folders = {}
        for folder in (top, *filter(Path.is_dir, top.rglob("*"))):
            watch = libc.inotify_add_watch(inotify, os.fsencode(folder), IN_ACCESS | IN_OPEN)
            if watch < 0:
                raise OSError(ctypes.get_errno(), f"inotify_add_watch {folder}")
            folders[watch] = folder
        yield OpenedFiles(inotify, folders)
    finally:
        os.close(inotify)
