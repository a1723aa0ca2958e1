"""Stragglers: devices that have become much slower than the others, measured by what their profiles say."""

from collections import deque
from collections.abc import Mapping
from statistics import median

from fleetune.contracts.record import record

ROUNDS = 5
"""A device's pace is the median of its last rounds: one slow round says nothing."""
SLOW, AGAIN = 2.0, 1.4
"""A device is slow from SLOW times its profile and the others' pace on, until it is below AGAIN times."""


@record
class PaceChange:
    """A device that has become slow, or is as fast as before again."""

    device: str
    pace: float
    """Its compute seconds over those of its profile."""
    others: float
    """The median pace of the other devices."""
    slow: bool

    def __str__(self) -> str:
        if not self.slow:
            return f"is as fast as the others again: it computes {self.pace:.1f} times as long as its profile says"
        return (
            f"is slow: it computes {self.pace:.1f} times as long as its profile says, the others {self.others:.1f} "
            f"times, in the last {ROUNDS} rounds"
        )


class Stragglers:
    """Compares the paces of devices. A machine that is slow as a whole has none, nor has a fleet of one device."""

    def __init__(self) -> None:
        self._forecast_s: dict[str, float] = {}
        self._paces: dict[str, deque[float]] = {}
        self._slow: set[str] = set()

    def follow(self, forecast_s: Mapping[str, float]) -> None:
        """Measure by another plan. forecast_s: device -> compute seconds of a round by its profile."""
        self._forecast_s = {device: seconds for device, seconds in forecast_s.items() if seconds > 0}
        self._paces = {device: deque(maxlen=ROUNDS) for device in self._forecast_s}
        self._slow &= self._paces.keys()

    def observe(self, busy_s: Mapping[str, float]) -> tuple[PaceChange, ...]:
        """Add the measured compute seconds of a round; return what has changed."""
        for device, forecast_s in self._forecast_s.items():
            if device in busy_s:
                self._paces[device].append(busy_s[device] / forecast_s)
        known = {device: median(paces) for device, paces in self._paces.items() if len(paces) == ROUNDS}
        found = []
        for device, pace in known.items():
            others = [known[other] for other in known if other != device]
            if not others:
                continue
            was, limit = device in self._slow, AGAIN if device in self._slow else SLOW
            now = pace > limit * max(1.0, median(others))
            if now != was:
                self._slow ^= {device}
                found.append(PaceChange(device=device, pace=pace, others=median(others), slow=now))
        return tuple(found)
