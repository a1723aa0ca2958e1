"""A launcher of workers that see none of the files of the coordinator."""

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

from fleetune.contracts import json_io
from fleetune.launching import Command, Job
from fleetune.training.checkpoints import saving_folder
from fleetune.training.task import WorkerTask
from tests.support.training.recording import Recording


class AwayJob:
    """A job whose files lie in a folder of its own machine; all but `collect` is the job's."""

    def __init__(self, job: Job, folder: Path) -> None:
        self._job, self._folder = job, folder

    def __getattr__(self, name: str) -> Any:
        return getattr(self._job, name)

    def collect(self, folder: Path, into: Path) -> None:
        """Fetch what it wrote of a checkpoint."""
        shutil.copytree(
            saving_folder(self._folder, folder.parent.name, 0).parent / folder.name, into, dirs_exist_ok=True
        )


class AwayLauncher(Recording):
    """Starts workers that are told of no folder of the coordinator's that checkpoints lie in."""

    def __init__(self, away: Path) -> None:
        super().__init__()
        self._away = away

    def start(self, command: Command) -> Job:
        """Start a command, with a work folder of its own."""
        path = Path(command.arguments[1])
        task = json_io.read(WorkerTask, path)
        own = self._away / task.device
        json_io.write(replace(task, work=str(own)), path)
        return AwayJob(super().start(command), own)  # type: ignore[return-value]
