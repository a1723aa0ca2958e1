"""Summary of an event log, the `events` artifact, and its reader, which follows a log while it grows."""

import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from fleetune.contracts import json_io
from fleetune.contracts.course import Course
from fleetune.contracts.record import record
from fleetune.contracts.task import Progress
from fleetune.errors import Refused
from fleetune.monitoring.course_builder import CourseBuilder
from fleetune.monitoring.event_log import (
    BEATS,
    COMMITTED,
    DONE,
    ENDED,
    JOINED,
    LOST,
    RECOVERING,
    RESUMING,
    STARTED,
    Event,
)

POLL_INTERVAL_S = 0.25
NO_END = "its writer was gone before it said how it ended"


@record
class Membership:
    """One membership of a device; times are seconds since the log's first event."""

    device: str
    joined_s: float
    last_beat_s: float
    longest_silence_s: float
    ended: str
    """`done`, or the reason why the device left."""


@record
class EventSummary:
    """Summary of a training."""

    memberships: tuple[Membership, ...]
    """In the order of joining; a device that returned has several."""
    rounds_planned: int
    rounds_committed: int
    failures: tuple[str, ...]
    """One sentence each; empty when nothing went wrong."""
    ended: str
    """`done`, or the reason of the end."""
    unreadable_lines: int = 0
    """Number of lines that a writer could not finish."""
    recoveries: tuple[str, ...] = ()
    """How the training went on after failures; one sentence each."""
    course: Course | None = None
    """Rounds over time, if anything was lost."""


class _OpenMembership:
    """A membership while its events are read."""

    def __init__(self, device: str, now_s: float) -> None:
        self.device = device
        self.joined_s = self.last_beat_s = now_s
        self.longest_silence_s = 0.0
        self.ended = ""

    def add_beats(self, now_s: float, silence_s: float) -> None:
        """Record beats up to `now_s`; `silence_s` is the longest time between two of them."""
        self.longest_silence_s = max(self.longest_silence_s, silence_s)
        self.last_beat_s = now_s

    def end(self, now_s: float, reason: str) -> None:
        """End the membership; the silence before the end counts too."""
        self.longest_silence_s = max(self.longest_silence_s, now_s - self.last_beat_s)
        self.ended = reason


class EventAggregator:
    """Adds up events into a summary."""

    def __init__(self) -> None:
        self.unreadable_lines = 0
        self.ended = ""
        self.rounds_planned = 0
        self._rounds: set[int] = set()
        self._memberships: list[_OpenMembership] = []
        self._failures: list[str] = []
        self._recoveries: list[str] = []
        self._course = CourseBuilder()
        self._first_s: float | None = None
        self._now_s = 0.0

    @property
    def rounds_committed(self) -> int:
        """Number of distinct committed rounds."""
        return len(self._rounds)

    def add(self, events: Iterable[Event]) -> None:
        """Add the next events of the log."""
        for event in events:
            self._first_s = event.at_s if self._first_s is None else self._first_s
            self._now_s = max(self._now_s, event.at_s - self._first_s)
            self._add(event, event.at_s - self._first_s)

    def summary(self) -> EventSummary:
        """Return the summary so far; a log without an end event counts as one whose writer is gone."""
        if not self.ended:
            self._end(NO_END)
        return EventSummary(
            memberships=tuple(
                Membership(
                    device=member.device,
                    joined_s=member.joined_s,
                    last_beat_s=member.last_beat_s,
                    longest_silence_s=member.longest_silence_s,
                    ended=member.ended,
                )
                for member in self._memberships
            ),
            rounds_planned=self.rounds_planned,
            rounds_committed=self.rounds_committed,
            failures=tuple(self._failures),
            ended=self.ended,
            unreadable_lines=self.unreadable_lines,
            recoveries=tuple(self._recoveries),
            course=self._course.course(),
        )

    def _add(self, event: Event, now_s: float) -> None:
        if event.event == STARTED:
            if self._open():
                self._end(NO_END)
            self.ended, self.rounds_planned = "", event.rounds
            self._course.started()
        elif event.event == JOINED:
            self._memberships.append(_OpenMembership(event.device, now_s))
            self._course.joined(event.device)
        elif event.event == BEATS:
            for member in self._open(event.device):
                member.add_beats(now_s, event.silence_s)
        elif event.event == COMMITTED:
            self._rounds.add(event.round)
            self._course.committed(now_s, event.round + 1)
        elif event.event == LOST:
            for member in self._open(event.device):
                member.end(now_s, event.reason)
            self._course.lost(now_s, event.device, event.reason)
            what = f"device {event.device} was lost" if event.device else "training broke off"
            self._failures.append(f"{what} after {now_s:.1f} s: {event.reason}")
        elif event.event in (RECOVERING, RESUMING):
            self._recoveries.append(f"after {now_s:.1f} s: {event.reason}")
            if event.event == RESUMING:
                self._course.resuming(now_s, event.round, event.rounds, event.moved_bytes)
        elif event.event == ENDED:
            self._end(event.reason)

    def _open(self, device: str | None = None) -> list[_OpenMembership]:
        return [member for member in self._memberships if not member.ended and device in (None, member.device)]

    def _end(self, reason: str) -> None:
        for member in self._open():
            member.end(self._now_s, reason)
        if reason != DONE:
            self._failures.append(f"training ended after {self._now_s:.1f} s: {reason}")
        self.ended = reason


def follow(
    events: Path,
    progress: Progress,
    *,
    alive: Callable[[], bool],
    sleep: Callable[[float], None] = time.sleep,
    interval_s: float = POLL_INTERVAL_S,
) -> EventSummary:
    """Read a log until its `ended` event, or until `alive()` returns False because its writer is gone.

    The log need not exist yet. An unfinished line is left for the next poll; one that cannot be parsed is counted.
    Another attempt at a training may continue the log of a killed writer, but needs a new log after an `ended` event.
    """
    aggregator = EventAggregator()
    reader = _LineReader(events)
    reported = (0, 0)
    while True:
        was_alive = alive()  # asked before reading, so that its last lines are read
        for line in reader.new_lines():
            try:
                aggregator.add([json_io.parse(Event, line, str(events))])
            except Refused:
                aggregator.unreadable_lines += 1
        rounds = aggregator.rounds_committed, aggregator.rounds_planned
        if rounds != reported:
            progress("rounds committed", *rounds, "rounds")
            reported = rounds
        if aggregator.ended or not was_alive:
            return aggregator.summary()
        sleep(interval_s)


class _LineReader:
    """Reads whole lines that were added since the last call."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._read_bytes = 0
        self._rest = b""

    def new_lines(self) -> Iterator[bytes]:
        try:
            with self._path.open("rb") as file:
                file.seek(self._read_bytes)
                fresh = file.read()
        except FileNotFoundError:
            return
        self._read_bytes += len(fresh)
        *lines, self._rest = (self._rest + fresh).split(b"\n")
        yield from (line for line in lines if line.strip())
