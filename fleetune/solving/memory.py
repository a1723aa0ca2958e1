"""Whether what a method needs fits into this machine's memory, asked before it is taken."""

from pathlib import Path

import psutil

from fleetune import cgroup
from fleetune.cgroup import MEMBERSHIP, MOUNT
from fleetune.errors import Refused


def require_memory(needed_bytes: int, what: str) -> None:
    """Refuse what would not fit beside what runs already; `what` is the size of the problem in words."""
    room_bytes = available_bytes()
    if needed_bytes > room_bytes:
        raise Refused(
            f"{what} need {needed_bytes / 1e9:.1f} GB of memory by this method, and {room_bytes / 1e9:.1f} GB are free "
            "here; join layers, or choose another method (fleetune solve --list)"
        )


def available_bytes(membership: Path = MEMBERSHIP, mount: Path = MOUNT) -> int:
    """Free memory of this machine, or what the control groups of this process leave it, where that is less."""
    free: int = psutil.virtual_memory().available
    left = cgroup.free_bytes(membership, mount)
    return free if left is None else min(free, left)
