"""The clock that a time limit is held to; without a limit it is never looked at."""

import math
import time

LOOKING_S = 1.0
"""So long, whatever the limit, something that fits is looked for where nothing is found yet."""


class Watch:
    """Started when it is made."""

    def __init__(self, limit_s: float | None = None) -> None:
        self.started, self.limit_s = time.monotonic(), limit_s
        self.ends = math.inf if limit_s is None else self.started + limit_s

    @property
    def limited(self) -> bool:
        """Whether a clock decides, rather than work."""
        return self.ends < math.inf

    @property
    def over(self) -> bool:
        """Whether to stop with what there is."""
        return self.limited and time.monotonic() >= self.ends

    def left_s(self) -> float:
        """At least 0; without end where there is no limit."""
        return max(0.0, self.ends - time.monotonic()) if self.limited else math.inf

    def looking(self, share: float) -> "Watch":
        """Ends after a share of what finding a first plan may take: the limit, or longer where that is very short."""
        found = Watch(None)
        if self.limit_s is not None:
            found.limit_s = share * max(self.limit_s, LOOKING_S)
            found.started, found.ends = self.started, self.started + found.limit_s
        return found


ENDLESS = Watch()
