"""A tracker that follows a run, and what is said when it cannot."""

from collections.abc import Callable

from fleetune.errors import first_line
from flows.trackers.points import Point, Tracker

Read = Callable[[bool], list[Point]]
"""Whether the run has ended -> all of its points."""


class Follower:
    """Brings one tracker up to date whenever it is asked to; an error of the tracker is told once and ends nothing."""

    def __init__(self, tracker: Tracker, read: Read, tell: Callable[[str], None]) -> None:
        """tell: receives a sentence for people who watch the run."""
        self._tracker, self._read, self._tell = tracker, read, tell
        self._told = False
        self.failed = False
        """True if the last update failed."""

    def update(self, over: bool = False) -> None:
        """Write what is new; over: whether the run has ended."""
        self._try(lambda: self._tracker.update(self._read(over)), "the run goes on, and it is tried again")

    def end(self, state: str) -> None:
        """Write what is left and end the tracker; `state` is that of the run."""
        self.update(over=True)
        lost = self.failed
        self._try(lambda: self._tracker.close(state), "the run is not touched by it")
        if lost:
            self._tell(f"tracking.{self._tracker.name}: not all of this run was written; rerun it to write it again")

    def _try(self, work: Callable[[], None], what_now: str) -> None:
        try:
            work()
            self.failed = False
        except Exception as error:
            self.failed = True
            if not self._told:
                self._tell(f"tracking.{self._tracker.name}: {first_line(error) or type(error).__name__}; {what_now}")
            self._told = True
