"""What this process has used: CPU time, and memory at its peak since a moment."""

import ctypes
import time
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Usage:
    """Of one piece of work."""

    cpu_s: float
    """Of all threads."""
    peak_bytes: int
    """Most that was resident at once, above what was before."""


class Meter:
    """Reads them from its making on."""

    def __init__(self) -> None:
        ctypes.CDLL(None).malloc_trim(0)  # what the allocator kept for later would hide what is allocated next
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # the peak is the present again
        self._before_bytes = _status_bytes("VmRSS:")
        self._before_s = time.process_time()

    def read(self) -> Usage:
        """Since this meter was made."""
        return Usage(time.process_time() - self._before_s, _status_bytes("VmHWM:") - self._before_bytes)


def _status_bytes(key: str) -> int:
    for line in Path("/proc/self/status").read_text(encoding="ascii", errors="replace").splitlines():
        if line.startswith(key):
            return int(line.split()[1]) * 1024
    raise KeyError(key)
