"""Whether what a method needs fits into this machine's memory, asked before it is taken."""

from contextlib import suppress
from pathlib import Path

import psutil

from fleetune.errors import Refused

CGROUP = Path("/sys/fs/cgroup")


def require_memory(needed_bytes: int, what: str) -> None:
    """Refuse what would not fit beside what runs already; `what` is the size of the problem in words."""
    room_bytes = available_bytes()
    if needed_bytes > room_bytes:
        raise Refused(
            f"{what} need {needed_bytes / 1e9:.1f} GB of memory by this method, and {room_bytes / 1e9:.1f} GB are free "
            "here; join layers, or choose another method (fleetune solve --list)"
        )


def available_bytes(cgroup: Path = CGROUP) -> int:
    """Free memory of this machine, or of the container that this process runs in where that is less."""
    free: int = psutil.virtual_memory().available
    with suppress(OSError, ValueError):  # no container, or one without a limit
        limit, used = (int((cgroup / name).read_text()) for name in ("memory.max", "memory.current"))
        free = min(free, max(0, limit - used))
    return free
