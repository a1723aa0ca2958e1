"""Read a log while it grows."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path

from fleetune.contracts import wire
from fleetune.contracts.task import Progress
from fleetune.errors import Refused
from fleetune.monitoring.events import Event
from fleetune.monitoring.summary import Account, EventSummary

LOOK_EVERY_S = 0.25


def follow(
    events: Path,
    progress: Progress,
    *,
    alive: Callable[[], bool],
    sleep: Callable[[float], None] = time.sleep,
    look_every_s: float = LOOK_EVERY_S,
) -> EventSummary:
    """Follow a log until it says that training ended, or until `alive()` says that its writer is gone.

    The log need not exist yet. A line without its end is left for the next look; one that cannot be read is counted.
    Another attempt at the same training may continue a log whose writer was killed, but needs a new one after an end.
    """
    account = Account()
    tail = _Tail(events)
    told = (0, 0)
    while True:
        was_alive = alive()  # asked first: what was written before the writer went is still read
        for line in tail.new_lines():
            try:
                account.add([wire.parse(Event, line, str(events))])
            except Refused:
                account.unreadable_lines += 1
        rounds = account.rounds_committed, account.rounds_planned
        if rounds != told:
            progress("rounds committed", *rounds, "rounds")
            told = rounds
        if account.ended or not was_alive:
            return account.summary()
        sleep(look_every_s)


class _Tail:
    """Whole lines that were added since the last look."""

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
