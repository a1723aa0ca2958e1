"""The trackers of a run at work, each in a thread of its own beside the run's stages."""

import threading
import time
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Self

from fleetune.store import RunRecord, Store
from fleetune.store.runs import end_state
from flows.runner import Runner
from flows.trackers.follower import Follower
from flows.trackers.open import open_trackers
from flows.trackers.points import Tracker
from flows.trackers.run_points import RunPoints
from flows.tracking import StageEvent

PAUSE_S, RETRY_S = 2.0, 30.0
"""Seconds between two updates, and after one that failed."""
END_S, INTERRUPTED_S = 15.0, 3.0
"""Longest wait for all last updates together, and when the run is cancelled."""


class Tracking:
    """A context manager around a run's stages."""

    def __init__(
        self, runner: Runner, trackers_of: Callable[[Store, RunRecord], Iterable[Tracker]] = open_trackers
    ) -> None:
        """`trackers_of`: opens the trackers of a run."""
        self._runner = runner
        self._over = threading.Event()
        self._state = "done"
        self._threads = {
            tracker.name: threading.Thread(
                target=self._work,
                args=(Follower(tracker, self._points().read, self._tell),),
                name=f"tracking-{tracker.name}",
                daemon=True,
            )
            for tracker in trackers_of(runner.context.store, runner.record)
        }

    def __enter__(self) -> Self:
        for thread in self._threads.values():
            thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Write the end of the run, and say what could not be written in time."""
        interrupted = self._runner.stopped or (error is not None and not isinstance(error, Exception))
        self._state = end_state(self._runner.error or error, interrupted)
        self._over.set()
        limit_s = INTERRUPTED_S if interrupted else END_S
        end_s = time.monotonic() + limit_s
        for name, thread in self._threads.items():
            thread.join(max(0.0, end_s - time.monotonic()))
            if thread.is_alive():
                self._tell(f"tracking.{name}: not all of this run was written within {limit_s:g} s")

    def _points(self) -> RunPoints:
        return RunPoints(self._runner.context.store, lambda: self._runner.record)

    def _work(self, follower: Follower) -> None:
        while not self._over.wait(RETRY_S if follower.failed else PAUSE_S):
            follower.update()
        follower.end(self._state)

    def _tell(self, text: str) -> None:
        self._runner.context.listen(StageEvent(stage="run", kind="note", text=text))
