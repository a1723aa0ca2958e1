"""Limits of a solver: the deadline of a search, and the free memory that a method's tables need.

Solvers read no clock but that of their `Deadline`, which tests replace.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from pathlib import Path

import psutil

from fleetune import linux
from fleetune.errors import Refused
from fleetune.formatting import gigabytes
from fleetune.linux import MEMBERSHIP, MOUNT

LEAST_S = 1e-3
"""Limits are positive."""


class Deadline:
    """A time limit that starts when the object is made."""

    def __init__(self, limit_s: float | None = None, now: Callable[[], float] = time.monotonic) -> None:
        """limit_s: None never expires; now: seconds of a clock that never goes back."""
        self.limit_s, self._now = limit_s, now
        self.started = now()
        self.ends = math.inf if limit_s is None else self.started + limit_s

    @property
    def limited(self) -> bool:
        """True if a time limit, rather than an amount of work, ends the search."""
        return self.ends < math.inf

    @property
    def expired(self) -> bool:
        """True once the limit is reached."""
        return self.limited and self._now() >= self.ends

    @property
    def rest_s(self) -> float | None:
        """The limit of what is done in the time that is left, which is a moment at least; None if it never expires."""
        return max(LEAST_S, self.left_s()) if self.limited else None

    def elapsed_s(self) -> float:
        """Seconds since the start."""
        return self._now() - self.started

    def left_s(self) -> float:
        """Seconds left, at least 0; infinite without a limit."""
        return max(0.0, self.ends - self._now()) if self.limited else math.inf

    def affords(self, cost_s: float) -> bool:
        """True if a step of about this many seconds, which cannot be stopped, still ends in time."""
        return not self.limited or self.left_s() >= cost_s

    def part(self, share: float) -> Deadline:
        """A deadline after this share of the time that is left."""
        return Deadline(share * self.left_s() if self.limited else None, self._now)

    def extended(self, share: float, least_s: float) -> Deadline:
        """A deadline after this share of the limit, or of `least_s` if the limit is shorter, from the same start."""
        found = Deadline(None, self._now)
        if self.limit_s is not None:
            found.limit_s = share * max(self.limit_s, least_s)
            found.started, found.ends = self.started, self.started + found.limit_s
        return found


NO_DEADLINE = Deadline()


def require_memory(needed_bytes: int, what: str) -> None:
    """Raise Refused if the tables do not fit into free memory; what: the size of the problem in words."""
    room_bytes = available_bytes()
    if needed_bytes > room_bytes:
        raise Refused(
            f"{what} need {gigabytes(needed_bytes, 1)} of memory by this method, and {gigabytes(room_bytes, 1)} are "
            "free here; join layers, or choose another method (fleetune solve --list)"
        )


def available_bytes(membership: Path = MEMBERSHIP, mount: Path = MOUNT) -> int:
    """Return the free bytes of this machine, or of this process's control groups if that is less."""
    free: int = psutil.virtual_memory().available
    left = linux.free_bytes(membership, mount)
    return free if left is None else min(free, left)
