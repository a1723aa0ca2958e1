"""Who holds a lock: what the kernel tells in /proc/locks, see proc(5)."""

import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from fleetune.formatting import visible
from fleetune.linux import read_text

LOCKS = Path("/proc/locks")
MOST_CHARACTERS = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class LockHolder:
    """A process that holds a lock."""

    pid: int
    command: str
    stopped: bool

    def __str__(self) -> str:
        """Who it is, and what to do if it is stopped."""
        who = f"process {self.pid} ({self.command})"
        cure = f": fg in its terminal lets it go on, kill -9 {self.pid} ends it"
        return f"{who}, which is stopped{cure}" if self.stopped else who


def find_holder(path: Path) -> LockHolder | None:
    """One of those that hold the lock on a file, a stopped one if there is any; None where the kernel does not tell."""
    import psutil  # commands that show records wait for no lock

    found = list[LockHolder]()
    with suppress(OSError):
        file = path.stat()
        for line in read_text(LOCKS).splitlines():
            words = line.split()  # number, kind, and so on, process, device and inode, range; with `->` for who waits
            if len(words) == 8 and words[5].rpartition(":")[2] == str(file.st_ino) and _has_open(words[4], file):
                with suppress(psutil.Error):
                    process = psutil.Process(int(words[4]))
                    command = visible(" ".join(process.cmdline()))[-MOST_CHARACTERS:]
                    stopped = process.status() in (psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP)
                    found.append(LockHolder(pid=process.pid, command=command, stopped=stopped))
    return max(found, key=lambda holder: holder.stopped, default=None)


def _has_open(pid: str, file: os.stat_result) -> bool:
    """True for the very file: some file systems tell /proc/locks of another device than programs."""
    with suppress(OSError):
        for each in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(OSError):  # it was closed meanwhile
                if os.path.samestat(each.stat(), file):
                    return True
    return False
