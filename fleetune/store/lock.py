"""Locks between processes of one machine: flock(2) on a file, which the kernel releases when the holder dies.

Machines that share a remote store do not see each other's locks; they may do the same work twice, which content
addressing makes harmless.
"""

import fcntl
import os
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

from fleetune.errors import TryAgain
from fleetune.filesystem import open_for_writing
from fleetune.store.lock_holder import find_holder

RETRY_S, LOOK_EVERY = 0.1, 10
"""Pause between two tries, and tries between two looks at who holds the lock."""
STOPPED_LOOKS = 10
"""How many looks in a row may find the holder of a brief lock stopped: whoever has pressed Ctrl-Z by mistake has typed
`fg` within ten seconds, and for a process that runs nothing is counted, however slow its disk is."""


class Lock:
    """A lock on a file; as a context manager it waits until the lock is free."""

    def __init__(
        self,
        path: Path,
        pause: Callable[[float], bool],
        waiting: Callable[[str], None] = lambda holder: None,
        *,
        shared: bool = False,
        brief: bool = False,
    ) -> None:
        """`pause(s)` sleeps and returns True to give up waiting; `waiting` is told who holds the lock, before the first
        wait and when that process is stopped.

        Several processes may hold a `shared` lock at once, but not together with one that is not shared. A `brief` one
        is held for moments: TryAgain once its holder has been stopped for longer.
        """
        self._path = path
        self._pause = pause
        self._waiting = waiting
        self._brief = brief
        self._kind = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
        self._file: int | None = None

    def take(self) -> bool:
        """Take the lock if it is free; return True if this object now holds it."""
        if self._file is not None:
            return True
        self._path.parent.mkdir(parents=True, exist_ok=True)
        file = open_for_writing(self._path, os.O_RDWR, 0o600)  # whoever can read it can hold it
        try:
            fcntl.flock(file, self._kind | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(file)
            return False
        if not _is_at(file, self._path):  # it was removed after it was opened: who comes next locks another file
            os.close(file)
            return self.take()
        self._file = file
        return True

    def release(self) -> None:
        """Release the lock; safe to repeat."""
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def __enter__(self) -> "Lock":
        told, stopped, tries = "", 0, 0
        while not self.take():
            if tries % LOOK_EVERY == 0:
                holder = find_holder(self._path)
                said = str(holder or "another process")
                stopped = stopped + 1 if holder and holder.stopped else 0
                if self._brief and stopped > STOPPED_LOOKS:
                    raise TryAgain(f"{self._path.name}: this lock is held by {said}; then run this again")
                if not told or (stopped and said != told):
                    told = said
                    self._waiting(said)
            if self._pause(RETRY_S):
                raise TryAgain(f"{self._path.name}: stopped while another process held this lock; run it again")
            tries += 1
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


def _is_at(file: int, path: Path) -> bool:
    try:
        found = path.stat()
    except FileNotFoundError:
        return False
    return os.path.samestat(os.fstat(file), found)


def remove_free(path: Path) -> bool:
    """Delete the file of a lock that no process holds; returns False where one does, or may."""
    lock = Lock(path, lambda _: True)
    if is_held(path) or not lock.take():
        return False
    path.unlink(missing_ok=True)
    lock.release()
    return True


def is_held(path: Path) -> bool:
    """Return True if some process holds the lock, or only its owner may look; False if the file does not exist."""
    if not os.path.exists(path):  # nor one in a folder that may not be looked into
        return False
    probe = Lock(path, lambda _: True, shared=True)  # two that look at once do not take each other for a holder
    try:
        free = probe.take()
    except PermissionError:
        return True
    probe.release()
    return not free
