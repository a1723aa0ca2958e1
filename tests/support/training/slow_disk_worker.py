"""A worker whose disk takes a checkpoint only once the round after it runs."""

import sys
import threading
from collections import defaultdict
from dataclasses import replace
from typing import Any

import torch

from fleetune.errors import TryAgain
from fleetune.launching import Command, Job, ProcessLauncher
from fleetune.links.endpoint import Endpoint
from fleetune.training.exchange import Exchange
from fleetune.training.worker import main
from fleetune.training.worker_command import WORKER

PATIENCE_S = 20.0
LAST = 6
"""Rounds of the whole training: no round follows its last checkpoint."""


class SlowDiskLauncher:
    """Starts workers as this module."""

    def start(self, command: Command) -> Job:
        """Start a command."""
        assert command.module == WORKER
        return ProcessLauncher().start(replace(command, module=__spec__.name))


class SlowDiskExchange(Exchange):
    """Says that a checkpoint is written only once the next round has begun here."""

    def __init__(self, endpoint: Endpoint, coordinator: str, device: torch.device) -> None:
        super().__init__(endpoint, coordinator, device)
        self._begun: dict[int, threading.Event] = defaultdict(threading.Event)
        self._written: dict[int, threading.Event] = defaultdict(threading.Event)

    def start_round(self, round: int) -> None:
        """Begin a round."""
        super().start_round(round)
        self._begun[round].set()

    def send_control(self, kind: str, header: dict[str, Any], *parts: bytes) -> None:
        """Send a message to the coordinator."""
        saved = header["version"]["rounds"] if kind == "saved" else LAST
        if saved < LAST and not self._begun[saved].wait(PATIENCE_S):
            raise TryAgain(f"round {saved} waits for the checkpoint before it")
        if kind == "ready" and header["round"] > 0:  # a checkpoint that is not written yet takes the next one's place
            self._written[header["round"]].wait(PATIENCE_S)
        super().send_control(kind, header, *parts)
        if kind == "saved":
            self._written[saved].set()


if __name__ == "__main__":
    sys.exit(main(exchange=SlowDiskExchange))
