"""A worker that cannot write a checkpoint, for a reason that is none of its disk's."""

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from fleetune.launching import Command, Job, ProcessLauncher
from fleetune.training import checkpoints
from fleetune.training.worker import main
from fleetune.training.worker_command import WORKER

WHY = "these tensors share memory"


class FailingDiskLauncher:
    """Starts workers as this module."""

    def start(self, command: Command) -> Job:
        """Start a command."""
        assert command.module == WORKER
        return ProcessLauncher().start(replace(command, module=__spec__.name))


def fail(tensors: Any, path: Path) -> None:
    """Write nothing."""
    raise RuntimeError(WHY)


if __name__ == "__main__":
    checkpoints.save_file = fail
    sys.exit(main())
