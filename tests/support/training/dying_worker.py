"""A worker that is killed by its own hand when it sends a message of one kind in one round of the first attempt."""

import json
import os
import signal
import sys
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from fleetune.launching import Command
from fleetune.training.exchange import Exchange, Tensors, TransferKey
from fleetune.training.worker import main
from tests.support.training.recording import Recording

POLL_S = 0.01
DIES = "dies.json"
"""File beside a worker's task: where it dies."""


class DyingLauncher(Recording):
    """Starts the worker of one device as this module. kind: of `TransferKey`. after: a file that is awaited first."""

    def __init__(self, device: str, kind: str, round: int, after: Path) -> None:
        super().__init__()
        self._device, self._dies = device, json.dumps({"kind": kind, "round": round, "after": str(after)})

    def start(self, command: Command):  # type: ignore[no-untyped-def]
        """Start a command."""
        place = Path(command.arguments[1]).parent
        if place.name != self._device or (place / DIES).exists():
            return super().start(command)
        (place / DIES).write_text(self._dies)
        return super().start(replace(command, module=__spec__.name))


class DyingExchange(Exchange):
    """Sends messages until the last one."""

    dies: Mapping[str, Any] = {}

    def send(self, peer: str, key: TransferKey, tensors: Tensors, described: Mapping[str, Any] | None = None) -> None:
        """Send tensors to a peer, or die."""
        if (key.kind, key.round) == (self.dies["kind"], self.dies["round"]):
            while not Path(self.dies["after"]).exists():
                time.sleep(POLL_S)
            os.kill(os.getpid(), signal.SIGKILL)
        super().send(peer, key, tensors, described)


if __name__ == "__main__":
    DyingExchange.dies = json.loads(Path(sys.argv[2]).with_name(DIES).read_text())
    sys.exit(main(exchange=DyingExchange))
