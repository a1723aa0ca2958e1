"""Events of a run as lines of its Prefect log: each start, note and end, and progress every EVERY_S seconds.

A stage that says nothing for EVERY_S seconds gets a line as well, so that a reader of the log sees that it works.
"""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from fleetune import formatting
from flows.tracking import StageEvent, reason

EVERY_S, LOOK_S = 10.0, 1.0
"""Seconds between two lines of a stage; and between two looks for stages that say nothing."""
FLOW_RUNS = "prefect.flow_runs"
"""Parent of the loggers of all flow runs."""
WINDOW_S = 30.0
"""The pace of a stage is that of its last WINDOW_S seconds at least."""
ENDED = ("done", "failed", "stopped", "reused")
TIMED = ("done", "stopped")
"""Ends whose time is told, besides a failure's."""


class RunLog:
    """Writes events to a logger; called from the threads of all stages."""

    def __init__(
        self,
        logger: "logging.Logger | logging.LoggerAdapter[Any]",
        clock: Callable[[], float] = time.monotonic,
        quiet: Collection[str] = (),
    ) -> None:
        """`clock` gives seconds; `quiet` are stages whose progress another stage shows, as monitor's is train's."""
        self._logger = logger
        self._clock = clock
        self._quiet = quiet
        self._change = threading.Lock()
        self._stages: dict[str, _StageLog] = {}

    def hear(self, event: StageEvent) -> None:
        """Write an event; progress of a stage at most every EVERY_S seconds."""
        with self._change:
            line = self._line(event)
        if line:
            self._logger.log(logging.ERROR if event.kind == "failed" else logging.INFO, "%s", line)

    @contextmanager
    def beating(self) -> Iterator[None]:
        """Look for stages that say nothing, as long as the block lasts."""
        over = threading.Event()

        def look() -> None:
            while not over.wait(LOOK_S):
                self.beat()

        thread = threading.Thread(target=look, name="run-log", daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()

    def beat(self) -> None:
        """Write a line for each stage that has none since EVERY_S."""
        with self._change:
            now_s = self._clock()
            told = {name: stage.beat(now_s) for name, stage in self._stages.items() if name not in self._quiet}
        for name, said in told.items():
            if said:
                self._logger.info("%s", f"{name}: {said}")

    def _line(self, event: StageEvent) -> str:
        stage, now_s = self._stages.setdefault(event.stage, _StageLog()), self._clock()
        if event.kind == "progress":
            said = stage.progress(event, now_s)
            return f"{event.stage}: {said}" if said and event.stage not in self._quiet else ""
        if event.kind in ENDED:
            del self._stages[event.stage]
        return stage.told(event, now_s)


class CommandLog:
    """The log of a flow run that a command starts: events reach Prefect's server, and not the command's terminal.

    Events before `connect` are not written: the flow run does not exist yet.
    """

    def __init__(self) -> None:
        self._log: RunLog | None = None

    def connect(self, logger: "logging.Logger | logging.LoggerAdapter[Any]", quiet: Collection[str]) -> None:
        """Write to the logger of the flow run that has begun."""
        family = logging.getLogger(FLOW_RUNS)
        if not family.isEnabledFor(logging.INFO):  # as the command sets it, for its terminal
            family.setLevel(logging.INFO)
            family.propagate = False
        self._log = RunLog(logger, quiet=quiet)

    def hear(self, event: StageEvent) -> None:
        """See RunLog.hear."""
        if self._log is not None:
            self._log.hear(event)

    @contextmanager
    def beating(self) -> Iterator[None]:
        """See RunLog.beating; call it after `connect`."""
        assert self._log is not None
        with self._log.beating():
            yield

    def flush(self) -> None:
        """Send what is not sent yet, for some seconds at most."""
        for handler in logging.getLogger(FLOW_RUNS).handlers:
            handler.flush()


class _Mark(NamedTuple):
    """An amount of work and the time at which it was done."""

    at_s: float
    done: float


class _StageLog:
    """What was told of one stage."""

    def __init__(self) -> None:
        self._why = ""
        self._work = ""
        self._detail = ""
        self._told_s: float | None = None
        """When progress was told."""
        self._began_s: float | None = None
        self._line_s = 0.0
        """When anything was told."""
        self._marks: deque[_Mark] = deque()

    def progress(self, event: StageEvent, now_s: float) -> str:
        """The line of a progress event; empty when one was told within EVERY_S."""
        if event.text != self._work or (self._marks and event.done < self._marks[-1].done):
            self._work = event.text
            self._marks.clear()
        self._marks.append(_Mark(now_s, event.done))
        while len(self._marks) > 2 and now_s - self._marks[1].at_s >= WINDOW_S:
            self._marks.popleft()
        self._detail = event.detail
        if self._told_s is not None and now_s - self._told_s < EVERY_S:
            return ""
        self._told_s = self._line_s = now_s
        return ", ".join([event.detail or _count(event), *self._pace(event)])

    def _pace(self, event: StageEvent) -> list[str]:
        """`38 samples/s` and `27 s left`, by the work of the last seconds; nothing while that is unknown."""
        first, last = self._marks[0], self._marks[-1]
        if last.at_s <= first.at_s or last.done <= first.done:
            return []
        per_s = (last.done - first.done) / (last.at_s - first.at_s)
        said = [f"{_short(per_s)} {event.unit}/s"] if event.unit not in ("", "%") and per_s >= 0.1 else []
        left = max(event.total - event.done, 0.0)
        return [*said, f"{formatting.seconds(round(left / per_s))} left"] if left else said

    def beat(self, now_s: float) -> str:
        """The line of a stage that has begun and told nothing within EVERY_S; empty for any other."""
        if self._began_s is None or now_s - self._line_s < EVERY_S:
            return ""
        self._line_s = now_s
        known = self._detail or self._work
        return f"still at work, {formatting.seconds(round(now_s - self._began_s))}" + (f" ({known})" if known else "")

    def told(self, event: StageEvent, now_s: float) -> str:
        """The line of any other event; the reason of a start is not said again at the end."""
        self._line_s = now_s
        if event.kind == "started":
            self._began_s = now_s
            self._why = reason(event.text)
        known = self._why if event.kind in ENDED else ""
        return line_of(event, known, self._detail if event.kind == "done" else "")


def line_of(event: StageEvent, known: str = "", detail: str = "") -> str:
    """`train: done in 34.2 s (round 40 of 40, loss 2.13)`: an event that is not progress.

    `known`: the reason that was told at the start; `detail`: how far the stage came.
    """
    if event.kind == "note":
        return f"{event.stage}: {event.text}"
    took = f" {'in' if event.kind == 'done' else 'after'} {event.seconds:.1f} s" if event.seconds else ""
    if event.kind == "failed":
        return f"{event.stage}: failed{took}: {event.text}"
    why = reason(event.text)
    new = why.removeprefix(known).lstrip("; ") if known else why
    facts = "; ".join(filter(None, (detail, new)))
    return f"{event.stage}: {event.kind}{took if event.kind in TIMED else ''}" + (f" ({facts})" if facts else "")


def _count(event: StageEvent) -> str:
    """`tokenizing 1200 of 4000 files`."""
    if not event.total:
        return event.text
    if event.unit == "%":
        return f"{event.text} {100 * event.done / event.total:.0f} %"
    unit = "" if event.unit in event.text.split() else event.unit
    return f"{event.text} {_short(event.done)} of {_short(event.total)} {unit}".rstrip()


def _short(amount: float) -> str:
    return f"{amount:.0f}" if amount >= 10 or amount == int(amount) else f"{amount:.1f}"
