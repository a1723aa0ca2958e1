"""A worker whose messages are written to a file, as they are before encryption."""

import sys
import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from typing_extensions import Buffer

from fleetune.launching import Command, Job, ProcessLauncher
from fleetune.training.worker import main
from fleetune.training.worker_command import WORKER

TAP = "tap.txt"
"""File beside a worker's task: the path that it writes to. In the environment it would cost a fork server a worker."""


class TappedLauncher:
    """Starts workers as this module; what a worker sends is in `folder/DEVICE`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True)

    def start(self, command: Command) -> Job:
        """Start a command."""
        assert command.module == WORKER
        task = Path(command.arguments[1])
        task.with_name(TAP).write_text(str(self.folder / task.parent.name))
        return ProcessLauncher().start(replace(command, module=__spec__.name))


class FileTap:
    """Appends frames to a file; several threads send."""

    def __init__(self, path: Path) -> None:
        self._path, self._lock = path, threading.Lock()

    def __call__(self, peer: str, frames: Sequence[Buffer]) -> None:
        with self._lock, self._path.open("ab") as file:
            for frame in frames:
                file.write(memoryview(frame))


if __name__ == "__main__":
    sys.exit(main(FileTap(Path(Path(sys.argv[2]).with_name(TAP).read_text()))))
