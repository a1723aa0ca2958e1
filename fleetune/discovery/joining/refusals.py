"""Who was not let in: told once for each address, and written down with the time."""

import os
import threading
from collections.abc import Callable
from datetime import datetime
from pathlib import Path

from fleetune.discovery.joining.front import Passed
from fleetune.discovery.joining.protocol import REFUSALS

TURNED_AWAY = 64 + 170 + 32
"""What a host sends to a client that it does not admit, in bytes, and a little more: the greeting of ZMTP, CURVE's
WELCOME, an ERROR. One that it admits gets a READY of 60 bytes and more besides."""


class Refusals:
    """Takes refusals from any thread."""

    def __init__(self, folder: Path, note: Callable[[str], None], now: Callable[[], datetime]) -> None:
        self._file, self._note, self._now = folder / REFUSALS, note, now
        self._told: set[str] = set()
        self._lock = threading.Lock()

    def ended(self, passed: Passed) -> None:
        """A connection of the front has ended; one that spoke and never got past the greeting was turned away."""
        if passed.inward_bytes and passed.outward_bytes < TURNED_AWAY:
            self.add(passed.remote, "turned away: its token is another, or it is no device of ours")

    def add(self, who: str, why: str) -> None:
        """Tell and write down, unless the same was said of the same client before."""
        sentence = f"{who} may not join: {why}"
        with self._lock:
            if sentence in self._told:
                return
            self._told.add(sentence)
            file = os.open(self._file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
            with os.fdopen(file, "w", encoding="utf-8") as log:
                log.write(f"{self._now().isoformat(timespec='seconds')} {sentence}\n")
        self._note(sentence)
