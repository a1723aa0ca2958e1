"""How much time a search has left; without a limit, always enough."""

from __future__ import annotations

import math
import time


class Watch:
    """Started when it is made."""

    def __init__(self, limit_s: float | None) -> None:
        self.ends = math.inf if limit_s is None else time.monotonic() + limit_s

    @property
    def limited(self) -> bool:
        """Whether a clock decides, rather than work."""
        return self.ends < math.inf

    def left_s(self) -> float:
        """At least 0."""
        return max(0.0, self.ends - time.monotonic()) if self.limited else math.inf

    def part(self, share: float) -> Watch:
        """Over once that share of what is left has gone."""
        return Watch(share * self.left_s() if self.limited else None)

    def affords(self, cost_s: float) -> bool:
        """Whether something of about this cost, which cannot be stopped, still ends in time."""
        return not self.limited or self.left_s() >= cost_s

    def over(self) -> bool:
        """Whether to stop."""
        return self.limited and time.monotonic() >= self.ends
