"""Who was not let in: told once for each address, and written down with the time."""

import os
import threading
from collections.abc import Callable
from datetime import datetime
from pathlib import Path

from fleetune.discovery.joining.front import Passed
from fleetune.discovery.joining.protocol import EARLIER_REFUSALS, REFUSALS

TURNED_AWAY = 64 + 170 + 32
"""What a host sends to a client that it does not admit, in bytes, and a little more: the greeting of ZMTP, CURVE's
WELCOME, an ERROR. One that it admits gets a READY of 60 bytes and more besides."""


MOST_TOLD = 200
"""Refusals that are told and written down; of those after them there is but a count."""
MOST_LOG_BYTES = 1 << 20
"""A longer log of earlier times makes room for a new one; that before it goes."""
MOST_CHARACTERS = 400


class Refusals:
    """Takes refusals from any thread; to be closed."""

    def __init__(self, folder: Path, note: Callable[[str], None], now: Callable[[], datetime]) -> None:
        self._file, self._note, self._now = folder / REFUSALS, note, now
        self._told: set[str] = set()
        self._further = 0
        self._lock = threading.Lock()
        if self._file.exists() and self._file.stat().st_size > MOST_LOG_BYTES:
            self._file.replace(folder / EARLIER_REFUSALS)

    def ended(self, passed: Passed) -> None:
        """A connection of the front has ended; one that spoke and never got past the greeting was turned away."""
        if passed.inward_bytes and passed.outward_bytes < TURNED_AWAY:
            self.add(passed.remote, "turned away: its token is another, or it is no device of ours")

    def add(self, who: str, why: str) -> None:
        """Tell and write down, unless the same was said of the same client before."""
        sentence = " ".join(f"{who} may not join: {why}".split())[:MOST_CHARACTERS]
        with self._lock:
            if sentence in self._told:
                return
            if len(self._told) >= MOST_TOLD:
                self._further += 1
                return
            self._told.add(sentence)
            self._write(sentence)
        self._note(sentence)

    def close(self) -> None:
        """Say how many there were of which nothing was said; safe to repeat."""
        with self._lock:
            further, self._further = self._further, 0
            if further:
                self._write(f"{further} further refusals are not written down")
        if further:
            self._note(f"{further} further refusals to join are only counted")

    def _write(self, sentence: str) -> None:
        file = os.open(self._file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        with os.fdopen(file, "w", encoding="utf-8", errors="replace") as log:
            log.write(f"{self._now().isoformat(timespec='seconds')} {sentence}\n")
