"""When the rounds of a training were committed, by its event log."""

from pathlib import Path

from fleetune.contracts import json_io
from fleetune.errors import FleetuneError
from fleetune.monitoring.event_log import BEATS, COMMITTED, RESUMING, Event
from flows.trackers.growing_file import GrowingFile


class CommitTimes:
    """Times of commits, read from a log that may still grow."""

    def __init__(self, path: Path) -> None:
        self._log = GrowingFile(path)
        self._forget()

    def _forget(self) -> None:
        self.at_s: dict[int, float] = {}
        """Round -> seconds since 1970 of its newest commit."""
        self.took_s: dict[int, float] = {}
        """Round -> seconds from the commit before it to its own; without rounds before which something else happened,
        such as the start of an attempt or a recovery."""
        self.resumed_from: int | None = None
        """First round after the first recovery."""
        self._last: Event | None = None

    def read(self) -> None:
        """Read what is new in the log; lines that cannot be read are left out."""
        other, lines = self._log.read()
        if other:
            self._forget()
        for line in lines:
            try:
                self._add(json_io.parse(Event, line, str(self._log.path)))
            except FleetuneError:
                continue

    def _add(self, event: Event) -> None:
        if event.event == BEATS:
            return
        if event.event == RESUMING and self.resumed_from is None:
            self.resumed_from = event.round
        if event.event != COMMITTED:
            self._last = None
            return
        self.at_s[event.round] = event.at_s
        self.took_s.pop(event.round, None)
        if self._last is not None and self._last.round == event.round - 1 and event.at_s > self._last.at_s:
            self.took_s[event.round] = event.at_s - self._last.at_s
        self._last = event
