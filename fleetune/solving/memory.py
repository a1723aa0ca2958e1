"""Check of free memory before a method allocates its tables."""

from pathlib import Path

import psutil

from fleetune import cgroup
from fleetune.cgroup import MEMBERSHIP, MOUNT
from fleetune.errors import Refused


def require_memory(needed_bytes: int, what: str) -> None:
    """Raise Refused if the tables do not fit into free memory; what: the size of the problem in words."""
    room_bytes = available_bytes()
    if needed_bytes > room_bytes:
        raise Refused(
            f"{what} need {needed_bytes / 1e9:.1f} GB of memory by this method, and {room_bytes / 1e9:.1f} GB are free "
            "here; join layers, or choose another method (fleetune solve --list)"
        )


def available_bytes(membership: Path = MEMBERSHIP, mount: Path = MOUNT) -> int:
    """Return the free bytes of this machine, or of this process's control groups if that is less."""
    free: int = psutil.virtual_memory().available
    left = cgroup.free_bytes(membership, mount)
    return free if left is None else min(free, left)
