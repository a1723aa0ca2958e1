"""The longest round that can be counted: beyond it, nanoseconds in 64 bits wrap, and the round would seem short."""

from fleetune.errors import Refused

MAX_ROUND_S = 4e9
"""Limit of all work and traffic of a round in sequence; 64 bits hold 9.2e9 s in nanoseconds."""


def countable(owner: str, seconds: float) -> float:
    """Return the seconds. Refused, naming the owner (a device or a link), if no round can be as long."""
    if not seconds <= MAX_ROUND_S:
        raise Refused(
            f"{owner}: a round could come to {seconds:.3g} s by it, more than can be counted ({MAX_ROUND_S:.3g}); "
            "check the unit of its times, or of its rate and latency"
        )
    return seconds
