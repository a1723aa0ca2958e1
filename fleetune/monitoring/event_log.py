"""The event log of a training: one JSON object per line, appended and flushed, never rewritten."""

import json
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self

from fleetune.contracts import json_io
from fleetune.contracts.record import not_negative, one_of, record

STARTED, JOINED, BEATS, COMMITTED, LOST, ENDED = "started", "joined", "beats", "committed", "lost", "ended"
RECOVERING, RESUMING = "recovering", "resuming"
KINDS = (STARTED, JOINED, BEATS, COMMITTED, LOST, RECOVERING, RESUMING, ENDED)
DONE = "done"
BEATS_INTERVAL_S = 5.0


@record
class Event:
    """One event; fields that do not belong to its kind keep their neutral value."""

    at_s: float
    """Seconds since 1970."""
    event: str
    device: str = ""
    rounds: int = 0
    """started: total number of planned rounds. resuming: rounds that are run again, beside the broken one."""
    round: int = 0
    """committed: number of the round. resuming: the round that the training goes on from."""
    beats: int = 0
    """beats: number since the last such event of the device."""
    silence_s: float = 0.0
    """beats: longest time between two of them."""
    moved_bytes: int = 0
    """resuming: bytes that devices send each other before."""
    devices: tuple[str, ...] = ()
    """resuming: those of the plan that the training goes on by."""
    reason: str = ""
    """lost, recovering, resuming, ended: a sentence; `done` ends a training that did all its rounds."""

    def __post_init__(self) -> None:
        one_of("event", "event", self.event, KINDS)
        not_negative(f"event {self.event}", rounds=self.rounds, beats=self.beats, silence_s=self.silence_s)
        not_negative(f"event {self.event}", round=self.round, moved_bytes=self.moved_bytes)


class _Beats:
    """Beats of one device since its last `beats` event."""

    def __init__(self, now_s: float) -> None:
        self.count = 0
        self.last_s = self.written_s = now_s
        self.longest_s = 0.0


class EventLog:
    """Writes a log from any thread; a line is flushed when the call returns.

    An existing log is continued: a line that its last writer could not finish is closed, not repaired.
    """

    def __init__(
        self, path: Path, clock: Callable[[], float] = time.time, beats_interval_s: float = BEATS_INTERVAL_S
    ) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._clock, self._beats_interval_s = clock, beats_interval_s
        self._beats: dict[str, _Beats] = {}
        self._lock = threading.Lock()
        self._file = path.open("a+b")
        if self._file.seek(0, os.SEEK_END):
            self._file.seek(-1, os.SEEK_END)
            if self._file.read(1) != b"\n":
                self._file.write(b"\n")
                self._file.flush()

    def started(self, rounds: int) -> None:
        """Record that a training, or another attempt at it, begins; `rounds` is the planned total."""
        self._write(Event(at_s=self._clock(), event=STARTED, rounds=rounds))

    def joined(self, device: str) -> None:
        """Record that a device joins."""
        with self._lock:
            self._beats[device] = _Beats(self._clock())
        self._write(Event(at_s=self._clock(), event=JOINED, device=device))

    def beat(self, device: str) -> None:
        """Count a beat of a device; one event every `beats_interval_s` sums these up."""
        now_s = self._clock()
        with self._lock:
            beats = self._beats.setdefault(device, _Beats(now_s))
            beats.count += 1
            beats.longest_s = max(beats.longest_s, now_s - beats.last_s)
            beats.last_s = now_s
            due = now_s - beats.written_s >= self._beats_interval_s
        if due:
            self._write_beats(device)

    def committed(self, round: int) -> None:
        """Record that all devices have applied a round."""
        self._write(Event(at_s=self._clock(), event=COMMITTED, round=round))

    def lost(self, device: str, reason: str) -> None:
        """Record the loss of a device; an empty name: the training breaks off without a device at fault."""
        self._write_beats(device)
        self._write(Event(at_s=self._clock(), event=LOST, device=device, reason=reason))

    def recovering(self, what: str) -> None:
        """Record what is done so that the training goes on without what was lost."""
        self._write(Event(at_s=self._clock(), event=RECOVERING, reason=what))

    def resuming(self, what: str, from_round: int, again: int, moved_bytes: int, devices: tuple[str, ...] = ()) -> None:
        """Record from which version the training goes on, and on which devices. again: rounds that are run again,
        beside the broken one.
        """
        self._write(
            Event(
                at_s=self._clock(),
                event=RESUMING,
                reason=what,
                round=from_round,
                rounds=again,
                moved_bytes=moved_bytes,
                devices=devices,
            )
        )

    def ended(self, reason: str = DONE) -> None:
        """Record the end of the training: `done`, or the reason of its failure."""
        for device in list(self._beats):
            self._write_beats(device)
        self._write(Event(at_s=self._clock(), event=ENDED, reason=reason))

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _write_beats(self, device: str) -> None:
        with self._lock:
            beats = self._beats.get(device)
            if beats is None or not beats.count:
                return
            fresh = _Beats(self._clock())
            fresh.last_s = beats.last_s
            self._beats[device] = fresh
        self._write(Event(at_s=beats.last_s, event=BEATS, device=device, beats=beats.count, silence_s=beats.longest_s))

    def _write(self, event: Event) -> None:
        always = {"at_s", "event", *(["round"] if event.event == COMMITTED else [])}
        plain = {key: value for key, value in json_io.dump(event).items() if value or key in always}
        line = json.dumps(plain, ensure_ascii=False, allow_nan=False).encode() + b"\n"
        with self._lock:
            self._file.write(line)
            self._file.flush()
