"""Finds what freezes among the processes that this one waits for: a stopped one, a paused container, a machine asleep.

A process lives while its processor time grows. Whatever `child.py` starts uses a little of it twice a second, also
while it waits; a long computation uses it whether or not it lets other threads run. Only what stands still uses none.
A container's processor time is seen from inside alone, by a process beside it that marks its stderr while it grows
(`child.py`), so that an engine out of reach counts as silence, too.

Whoever did not look cannot accuse: a gap between two looks counts as at most a quarter of the limit, and a machine that
slept as a whole stops the clock. On a busy machine limits stretch with the gaps between a process's own signs.
"""

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from fleetune.monitoring.failure_detector import FailureDetector, SilenceRule

LIMIT = SilenceRule(activities=("",), gaps=3.0, floor_s=60.0, ceiling_s=120.0, mute_s=120.0)
"""Longest time without a sign of life."""
LOOK_S = 1.0

Sign = object
"""What changes while a process lives; None where nothing tells, which accuses nobody."""


class Silence:
    """Finds those of several processes that show no sign of life; it has no thread, and the clock is an argument."""

    def __init__(self, limit: SilenceRule = LIMIT, clock: Callable[[], float] = time.monotonic) -> None:
        self._detector = FailureDetector((), limit.ceiling_s, clock, rule=limit)
        self._shown: dict[str, Sign] = {}

    def look(self, shown: Mapping[str, Sign]) -> tuple[str, ...]:
        """Return those that have been silent for too long. shown: process -> what it shows now; all others have ended.

        Call it again and again.
        """
        for name in self._shown.keys() - shown.keys():
            self._detector.remove(name)
        for name, sign in shown.items():
            if name not in self._shown:
                self._detector.add(name)
            elif sign is None or sign != self._shown[name]:
                self._detector.beat(name, 0)
        self._shown = dict(shown)
        return tuple(suspicion.device for suspicion in self._detector.suspicions())


@dataclass(frozen=True, slots=True, kw_only=True)
class LifeWatch:
    """How long a process may show no sign of life, and how often it is looked at."""

    limit: SilenceRule = LIMIT
    look_s: float = LOOK_S
    clock: Callable[[], float] = time.monotonic

    def wait(self, sign: Callable[[], Sign], over: Callable[[float], bool]) -> bool:
        """Look at a process until it is `over` or silent; return whether it is silent.

        over: waits for up to so many seconds; returns whether nothing is left to look at.
        """
        silence = Silence(self.limit, self.clock)
        while not over(self.look_s):
            if silence.look({"": sign()}):
                return True
        return False

    def follow(
        self, name: str, sign: Callable[[], Sign], over: Callable[[float], bool], end: Callable[[], None]
    ) -> None:
        """`wait` in a thread, then `end` the process if it is silent."""

        def watch() -> None:
            if self.wait(sign, over):
                end()

        threading.Thread(target=watch, name=f"fleetune-life-{name}", daemon=True).start()

    @contextmanager
    def following(self, name: str, sign: Callable[[], Sign], end: Callable[[], None]) -> Iterator[threading.Event]:
        """`follow` a process within the block; the event tells whether it was ended, being silent."""
        over, silent = threading.Event(), threading.Event()

        def end_silent() -> None:
            silent.set()
            end()

        self.follow(name, sign, over.wait, end_silent)
        try:
            yield silent
        finally:
            over.set()


USUAL = LifeWatch()
