"""Events of a run as lines of its Prefect log: each start, note and end, and progress every EVERY_S seconds."""

import logging
import threading
import time
from collections.abc import Callable
from typing import Any

from flows.tracking import StageEvent

EVERY_S = 10.0


class RunLog:
    """Writes events to a logger; called from the threads of all stages."""

    def __init__(
        self, logger: "logging.Logger | logging.LoggerAdapter[Any]", clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._logger = logger
        self._clock = clock
        self._change = threading.Lock()
        self._told_s: dict[str, float] = {}

    def hear(self, event: StageEvent) -> None:
        """Write an event; progress of a stage at most every EVERY_S seconds."""
        with self._change:
            now_s = self._clock()
            if event.kind == "progress" and now_s - self._told_s.get(event.stage, now_s - EVERY_S) < EVERY_S:
                return
            if event.kind == "progress":
                self._told_s[event.stage] = now_s
        self._logger.log(logging.ERROR if event.kind == "failed" else logging.INFO, "%s", line_of(event))


def line_of(event: StageEvent) -> str:
    """`train: round 12 of 40, loss 2.13, 38 samples/s, 27 s left`."""
    if event.kind == "progress":
        return f"{event.stage}: {event.detail or f'{event.text} {event.done:.0f} of {event.total:.0f} {event.unit}'}"
    took = f" ({event.seconds:.1f} s)" if event.kind in ("done", "failed", "stopped") and event.seconds else ""
    text = event.text.removeprefix(f"{event.kind}: ")
    return f"{event.stage}: {event.kind}{': ' + text if text else ''}{took}"
