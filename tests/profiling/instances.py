"""A tiny model prepared as the profile stage prepares it, and a launcher whose devices answer by script."""

import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fleetune.contracts import wire
from fleetune.contracts.config.training import TrainingRequest
from fleetune.contracts.fleet import Device, Fleet, Link
from fleetune.contracts.progress import quiet
from fleetune.launching import Command
from fleetune.models.graph import Graph
from fleetune.profiling.preparation import Folders, prepare_all
from fleetune.profiling.profile import ProfilingTask
from fleetune.profiling.worker import MeasureTask
from tests.training.families import BY_NAME, data_request, model_request

FAMILY = BY_NAME["bert"]
MODEL = model_request(FAMILY, dropout=True)


def prepared(folder: Path) -> tuple[Graph, Folders]:
    """Data, graph, configuration and starting weights of a tiny BERT."""
    folders = Folders(profile=folder / "profile", data=folder / "data")
    graph, _ = prepare_all(MODEL, data_request(FAMILY, folder), 3, folders, quiet)
    return graph, folders


def measure_task(folders: Folders, **changes: Any) -> MeasureTask:
    """What a measuring process is given."""
    settings: dict[str, Any] = {
        "device": "ann",
        "model": MODEL,
        "profile_folder": str(folders.profile),
        "data_folder": str(folders.data),
        "accelerator": "cpu",
        "cores": None,
        "memory_bytes": 8 << 30,
        "batch_sizes": (1, 2, 4),
        "passes": 1,
        **changes,
    }
    return MeasureTask(**settings)


def profiling_task(folder: Path, launcher: "Scripted", devices: tuple[str, ...]) -> ProfilingTask:
    """What the profile stage is given, with micro-batches of 6."""
    fleet = Fleet(
        devices=tuple(
            Device(name=d, memory_bytes=8 << 30, cores=0.5, fingerprint="test", emulated=d == "bob") for d in devices
        ),
        links=tuple(Link(source=a, target=b, latency_s=0, bytes_per_s=1) for a in devices for b in devices if a != b),
    )
    return ProfilingTask(
        fleet=fleet,
        model=MODEL,
        data=data_request(FAMILY, folder),
        training=TrainingRequest(rounds=1, batch_samples=12, micro_batch_samples=6),
        seed=3,
        folder=folder / "profile",
        data_folder=folder / "data",
        work=folder / "work",
        launcher=launcher,
        progress=quiet,
    )


@dataclass
class ScriptedJob:
    """A device process that says its lines and ends; without lines it says nothing until it is stopped."""

    said: list[dict[str, Any]]
    code: int
    pid: int = 0
    stopped: threading.Event = field(default_factory=threading.Event)

    def lines(self) -> Iterator[str]:
        """What it prints."""
        if not self.said and self.code == 0:
            assert self.stopped.wait(20), "nobody stopped a device that had nothing to say"
            return
        yield from (json.dumps(line) for line in self.said)

    def poll(self) -> int | None:
        """It has always ended."""
        return self.code

    def wait(self, timeout_s: float | None = None) -> int | None:
        """Its exit code."""
        return -15 if self.stopped.is_set() else self.code

    def stop(self, grace_s: float = 2.0) -> int:
        """Ends it."""
        self.stopped.set()
        return -15

    def tail(self, lines: int = 10) -> str:
        """It has written nothing."""
        return ""


class Scripted:
    """A launcher of ScriptedJobs, by the device that the task file names."""

    def __init__(self, jobs: dict[str, ScriptedJob]) -> None:
        self.jobs = jobs
        self.given: dict[str, MeasureTask] = {}

    def start(self, command: Command) -> ScriptedJob:
        """The job of the device whose task file is in the arguments."""
        assert command.module == "fleetune.profiling.worker"
        path = Path(command.arguments[-1])
        self.given[path.stem] = wire.read(MeasureTask, path)
        return self.jobs[path.stem]
