"""Binds a process of this machine to an emulated device's memory, where no container does it."""

import os
import resource
import signal
import threading
import time
from contextlib import suppress
from pathlib import Path

from fleetune.launching import memory_cgroup

RAN_OUT = 128 + signal.SIGKILL
"""Exit code of a process that was refused memory: the one that an engine gives a container without any left."""
LOOK_S = 0.02
RELEASE_LOOKS = 50
RESERVED_BYTES = 1 << 30
"""Address space that a process may have beyond its memory: stacks and buffers that it never touches."""
REFUSALS = "can't allocate memory", "Cannot allocate memory"


class MemoryWatch:
    """Kills a process, with its group, when it has held more memory than it may.

    Where control groups can be made, the kernel does so at the allocation that is too much. Everywhere this class looks
    many times a second: resident memory counts, files that are mapped included. What a single step could take before
    anybody looks is bounded, too: an allocation that leads RESERVED_BYTES beyond the limit is refused to the process.
    """

    def __init__(self, pid: int, limit_bytes: int) -> None:
        self.exceeded = False
        self.used_bytes = 0
        """Most that it was seen to hold."""
        self._pid, self._limit_bytes = pid, limit_bytes
        self._ended = threading.Event()
        self._group = memory_cgroup.bind(pid, limit_bytes)
        with suppress(OSError, ValueError):  # it has ended; its exit code says why
            bound = limit_bytes + RESERVED_BYTES
            resource.prlimit(pid, resource.RLIMIT_DATA, (bound, bound))
        self._thread = threading.Thread(target=self._run, name=f"fleetune-memory-{pid}", daemon=True)
        self._thread.start()

    def end(self) -> None:
        """Stop looking: the process has ended, and its number may be another's soon."""
        self._ended.set()
        self._thread.join()
        if self._group is not None and self._group.oom_killed:
            self.exceeded = True
            self.used_bytes = max(self.used_bytes, self._group.peak_bytes)

    def release(self) -> None:
        """Remove the control group, once every process of it has been told to end."""
        for _ in range(RELEASE_LOOKS):
            if self._group is None or self._group.remove():
                return
            time.sleep(LOOK_S)

    def _run(self) -> None:
        while not self._ended.wait(LOOK_S):
            self.used_bytes = max(self.used_bytes, _peak_bytes(self._pid))
            if self.used_bytes > self._limit_bytes:
                self.exceeded = True
                with suppress(ProcessLookupError):
                    os.killpg(self._pid, signal.SIGKILL)
                return


def refused_memory(error: BaseException) -> bool:
    """Whether an error means that the kernel gave the process no more memory (Python's, NumPy's or torch's words)."""
    return isinstance(error, MemoryError) or any(words in str(error) for words in REFUSALS)


def _peak_bytes(pid: int) -> int:
    """Most resident memory since the process began (or since it had the kernel count anew); 0 once it has ended."""
    try:
        for line in Path(f"/proc/{pid}/status").read_text(encoding="ascii", errors="replace").splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    return 0
