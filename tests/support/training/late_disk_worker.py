"""A worker whose disk takes one file of a checkpoint only once the other device has written the next checkpoint."""

import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from fleetune.launching import Command, Job, ProcessLauncher
from fleetune.training import checkpoints
from fleetune.training.worker import main
from fleetune.training.worker_command import WORKER

PATIENCE_S = 20.0
LATE, AWAITED = ("round-000001", "segment-0.safetensors.part"), "*/round-000002/segment-1.safetensors"
"""Folder and file, and where devices write another one."""

save_file = checkpoints.save_file


class LateDiskLauncher:
    """Starts workers as this module."""

    def start(self, command: Command) -> Job:
        """Start a command."""
        assert command.module == WORKER
        return ProcessLauncher().start(replace(command, module=__spec__.name))


def save_late(tensors: Any, path: Path) -> None:
    """Write a file, the late one after the awaited one; at the latest when patience ends."""
    until_s = time.monotonic() + PATIENCE_S
    while (path.parent.name, path.name) == LATE and time.monotonic() < until_s:
        if any(path.parents[2].glob(AWAITED)):
            break
        time.sleep(0.01)
    save_file(tensors, path)


if __name__ == "__main__":
    checkpoints.save_file = save_late
    sys.exit(main())
