"""A worker that loses its messages of one kind in one round of the first attempt, and leaves a file once it has."""

import json
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from fleetune.launching import Command, Job, ProcessLauncher
from fleetune.training.exchange import Exchange, Tensors, TransferKey
from fleetune.training.worker import main
from fleetune.training.worker_command import WORKER

LOSES = "loses.json"
"""File beside a worker's task: what it loses."""


class LosingLauncher:
    """Starts workers as this module. kind: of `TransferKey`; mark: the file that a worker leaves."""

    def __init__(self, kind: str, round: int, mark: Path) -> None:
        self._loses = json.dumps({"kind": kind, "round": round, "mark": str(mark)})

    def start(self, command: Command) -> Job:
        """Start a command."""
        assert command.module == WORKER
        Path(command.arguments[1]).with_name(LOSES).write_text(self._loses)
        return ProcessLauncher().start(replace(command, module=__spec__.name))


class LosingExchange(Exchange):
    """Sends all messages but the lost ones."""

    loses: Mapping[str, Any] = {}

    def send(self, peer: str, key: TransferKey, tensors: Tensors, described: Mapping[str, Any] | None = None) -> None:
        """Send tensors to a peer, unless they are to be lost."""
        if (key.kind, key.round, self.attempt.number) == (self.loses["kind"], self.loses["round"], 1):
            Path(self.loses["mark"]).touch()
        else:
            super().send(peer, key, tensors, described)


if __name__ == "__main__":
    LosingExchange.loses = json.loads(Path(sys.argv[2]).with_name(LOSES).read_text())
    sys.exit(main(exchange=LosingExchange))
