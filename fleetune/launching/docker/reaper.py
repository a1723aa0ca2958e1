"""`python -m fleetune.launching.docker.reaper`: removes a run's containers when the process that made them is killed.

It waits on its stdin. `done` means that nothing is left to do; the end of stdin without it, that the process which held
the other end is gone.
"""

import os
import signal
import subprocess
import sys
from contextlib import suppress
from typing import IO

from fleetune.contracts import wire
from fleetune.contracts.fleet import Engine
from fleetune.contracts.record import record
from fleetune.errors import FleetuneError
from fleetune.launching.docker import leftovers
from fleetune.launching.docker.engines import connect
from fleetune.launching.process import child_of, inherited

DONE = b"done\n"
PATIENCE_S = 10.0


@record
class Charge:
    """What a reaper looks after."""

    token: str
    engines: tuple[Engine, ...]
    local: bool
    """Whether the engine of this machine is one of them."""


class Reaper:
    """The process that waits, as its owner sees it."""

    def __init__(self, charge: Charge) -> None:
        self._process = subprocess.Popen(
            [*child_of(0), __name__],
            env=inherited(os.environ),
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # what ends its owner's group must not end it
        )
        self._line: IO[bytes] = self._process.stdin  # type: ignore[assignment]
        self._say(" ".join(wire.text(charge).split()).encode() + b"\n")

    def dismiss(self) -> None:
        """Nothing is left to remove; safe to repeat."""
        if not self._line.closed:
            self._say(DONE)
            with suppress(BrokenPipeError):
                self._line.close()
        try:
            self._process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _say(self, line: bytes) -> None:
        with suppress(BrokenPipeError):
            self._line.write(line)
            self._line.flush()


def main() -> int:
    """Wait, then remove."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # it ends when its owner does
    charge = wire.parse(Charge, sys.stdin.buffer.readline(), "charge")
    if sys.stdin.buffer.readline() == DONE:
        return 0
    for engine in (*charge.engines, *([None] if charge.local else [])):
        with suppress(FleetuneError):
            client = connect(engine)
            leftovers.remove(client, charge.token)
            client.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
