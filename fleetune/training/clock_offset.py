"""What turns this machine's monotonic clock into the coordinator's, measured again with every beat."""

import math
from dataclasses import dataclass

DRIFT = 1e-4
"""Seconds per second that two machines' clocks may drift apart: twice what a quartz is allowed."""
MOST_SAMPLES = 64


@dataclass(frozen=True, slots=True)
class _Sample:
    at_s: float
    offset_s: float
    bound_s: float
    """The offset was right within this, when it was measured: half of the round trip."""

    def bound_at_s(self, at_s: float) -> float:
        """How far off it may be at another time."""
        return self.bound_s + DRIFT * abs(at_s - self.at_s)


class ClockOffset:
    """Keeps the round trips that say most (as NTP does: half a round trip and the drift since then bound the error)."""

    def __init__(self) -> None:
        self._samples: list[_Sample] = []

    def add(self, sent_s: float, there_s: float, answered_s: float, back_s: float) -> None:
        """One round trip: `sent_s` and `back_s` of the clock here, `there_s` and `answered_s` of the one there."""
        offset_s = ((there_s - sent_s) + (answered_s - back_s)) / 2
        bound_s = ((back_s - sent_s) - (answered_s - there_s)) / 2
        if not (math.isfinite(offset_s) and bound_s >= 0):
            return  # no round trip takes less than no time
        new = _Sample((sent_s + back_s) / 2, offset_s, bound_s)
        if any(old.bound_at_s(new.at_s) <= new.bound_s for old in self._samples):
            return  # nothing that is not known better
        kept = [old for old in self._samples if new.bound_at_s(old.at_s) > old.bound_s]
        self._samples = [*kept, new][-MOST_SAMPLES:]

    def at_s(self, at_s: float) -> float:
        """The offset at a time of the clock here; 0 before anything was measured."""
        best = min(self._samples, key=lambda sample: sample.bound_at_s(at_s), default=None)
        return best.offset_s if best else 0.0
