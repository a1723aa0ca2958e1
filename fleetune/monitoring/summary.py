"""What a log says when it is read from its start: the `events` artifact."""

from collections.abc import Iterable

from fleetune.contracts.record import record
from fleetune.monitoring.events import BEATS, COMMITTED, DONE, ENDED, JOINED, LOST, STARTED, Event

UNSAID = "its writer was gone before it said how it ended"


@record
class Membership:
    """One stay of a device; times are seconds from the log's first event."""

    device: str
    joined_s: float
    last_beat_s: float
    longest_silence_s: float
    ended: str
    """`done`, or why the device left, in words."""


@record
class EventSummary:
    """A training in short."""

    memberships: tuple[Membership, ...]
    """In the order of joining; a device that came back has several."""
    rounds_planned: int
    rounds_committed: int
    failures: tuple[str, ...]
    """One sentence each; empty when nothing went wrong."""
    ended: str
    """`done`, or why it ended, in words."""
    unreadable_lines: int = 0
    """Lines that a writer could not finish."""


class _Stay:
    """A membership that is still being told."""

    def __init__(self, device: str, now_s: float) -> None:
        self.device = device
        self.joined_s = self.last_beat_s = now_s
        self.longest_silence_s = 0.0
        self.ended = ""

    def hear(self, now_s: float, silence_s: float) -> None:
        """Beats up to `now_s`, with at most `silence_s` between them."""
        self.longest_silence_s = max(self.longest_silence_s, silence_s)
        self.last_beat_s = now_s

    def end(self, now_s: float, reason: str) -> None:
        """The silence before the end counts too."""
        self.longest_silence_s = max(self.longest_silence_s, now_s - self.last_beat_s)
        self.ended = reason


class Account:
    """Takes events one by one; `summary()` at any time."""

    def __init__(self) -> None:
        self.unreadable_lines = 0
        self.ended = ""
        self.rounds_planned = 0
        self._rounds: set[int] = set()
        self._stays: list[_Stay] = []
        self._failures: list[str] = []
        self._first_s: float | None = None
        self._now_s = 0.0

    @property
    def rounds_committed(self) -> int:
        """Different rounds that were committed."""
        return len(self._rounds)

    def add(self, events: Iterable[Event]) -> None:
        """Take the next events of the log."""
        for event in events:
            self._first_s = event.at_s if self._first_s is None else self._first_s
            self._now_s = max(self._now_s, event.at_s - self._first_s)
            self._take(event, event.at_s - self._first_s)

    def summary(self) -> EventSummary:
        """What is known so far; a log without an end says that its writer is gone."""
        if not self.ended:
            self._end(UNSAID)
        return EventSummary(
            memberships=tuple(
                Membership(
                    device=stay.device,
                    joined_s=stay.joined_s,
                    last_beat_s=stay.last_beat_s,
                    longest_silence_s=stay.longest_silence_s,
                    ended=stay.ended,
                )
                for stay in self._stays
            ),
            rounds_planned=self.rounds_planned,
            rounds_committed=self.rounds_committed,
            failures=tuple(self._failures),
            ended=self.ended,
            unreadable_lines=self.unreadable_lines,
        )

    def _take(self, event: Event, now_s: float) -> None:
        if event.event == STARTED:
            if self._open():
                self._end(UNSAID)
            self.ended, self.rounds_planned = "", event.rounds
        elif event.event == JOINED:
            self._stays.append(_Stay(event.device, now_s))
        elif event.event == BEATS:
            for stay in self._open(event.device):
                stay.hear(now_s, event.silence_s)
        elif event.event == COMMITTED:
            self._rounds.add(event.round)
        elif event.event == LOST:
            for stay in self._open(event.device):
                stay.end(now_s, event.reason)
            what = f"device {event.device} was lost" if event.device else "training broke off"
            self._failures.append(f"{what} after {now_s:.1f} s: {event.reason}")
        elif event.event == ENDED:
            self._end(event.reason)

    def _open(self, device: str | None = None) -> list[_Stay]:
        return [stay for stay in self._stays if not stay.ended and device in (None, stay.device)]

    def _end(self, reason: str) -> None:
        for stay in self._open():
            stay.end(self._now_s, reason)
        if reason != DONE:
            self._failures.append(f"training ended after {self._now_s:.1f} s: {reason}")
        self.ended = reason
