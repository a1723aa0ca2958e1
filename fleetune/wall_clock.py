"""The date and time of day, for what is kept or shown; durations are measured by monotonic clocks."""

from collections.abc import Callable
from datetime import UTC, datetime

WallClock = Callable[[], datetime]
"""Returns the date and time with their time zone; tests hand in another."""


def utc_now() -> datetime:
    """Return the current time in UTC; the wall clock of everything that is given no other."""
    return datetime.now(UTC)
