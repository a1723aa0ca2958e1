"""A tiny prepared model, and a launcher of scripted measuring processes."""

import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fleetune.contracts import json_io
from fleetune.contracts.fleet import Device, Fleet, Link
from fleetune.contracts.run_config import DataRequest, ModelRequest
from fleetune.contracts.task import ignore_progress
from fleetune.contracts.training_request import TrainingRequest
from fleetune.launching import Command, LocalSites
from fleetune.models.graph import Graph
from fleetune.profiling.task import MeasureTask, ProfilingTask
from tests.support.preparation.instances import PreparedFolders, prepared_once
from tests.support.training.model_families import BY_NAME, data_request, model_request

FAMILY = BY_NAME["bert"]
MODEL = model_request(FAMILY, dropout=True)


def prepared(folder: Path) -> tuple[Graph, PreparedFolders]:
    """Data, graph, configuration and starting weights of a tiny BERT."""
    return prepared_once(folder, MODEL, data_request(FAMILY, folder))


def measure_task(folders: PreparedFolders, **changes: Any) -> MeasureTask:
    """The task of a measuring process."""
    settings: dict[str, Any] = {
        "device": "ann",
        "model": MODEL,
        "model_folder": str(folders.model),
        "data_folder": str(folders.data),
        "accelerator": "cpu",
        "cores": None,
        "threads": 1,
        "memory_bytes": 8 << 30,
        "batch_sizes": (1, 2, 4),
        "passes": 1,
        **changes,
    }
    return MeasureTask(**settings)


def profiling_task(
    folder: Path,
    launcher: "Scripted",
    devices: tuple[str, ...],
    model: ModelRequest = MODEL,
    data: DataRequest | None = None,
) -> ProfilingTask:
    """The task of the profile stage, with micro-batches of 6; prepares the model if it is not prepared yet."""
    folders = PreparedFolders.below(folder)
    if not folders.model.exists():
        prepared_once(folder, model, data or data_request(FAMILY, folder))
    fleet = Fleet(
        devices=tuple(
            Device(name=d, memory_bytes=8 << 30, cores=0.5, fingerprint="test", emulated=d == "bob") for d in devices
        ),
        links=tuple(Link(source=a, target=b, latency_s=0, bytes_per_s=1) for a in devices for b in devices if a != b),
    )
    return ProfilingTask(
        fleet=fleet,
        model=model,
        training=TrainingRequest(rounds=1, batch_samples=12, micro_batch_samples=6),
        seed=3,
        model_folder=folders.model,
        data_folder=folders.data,
        output=folders.model,
        work=folder / "work",
        sites=LocalSites(launcher),
        progress=ignore_progress,
    )


@dataclass
class ScriptedJob:
    """A measuring process that prints given lines and ends; without lines it prints nothing until it is stopped."""

    said: list[dict[str, Any]]
    code: int
    pid: int = 0
    out_of_memory: bool = False
    used_bytes: int | None = None
    stopped: threading.Event = field(default_factory=threading.Event)
    read: int = 0
    """Lines that were asked for so far."""
    held_after: int | None = None
    """The number of lines after which it was held."""

    def lines(self) -> Iterator[str]:
        """Its output."""
        if not self.said and self.code == 0:
            assert self.stopped.wait(20), "nobody stopped a device that had nothing to say"
            return
        for line in self.said:
            self.read += 1
            yield json.dumps(line)

    def poll(self) -> int | None:
        """Its exit code, since it has always ended."""
        return self.code

    def wait(self, timeout_s: float | None = None) -> int | None:
        """Its exit code."""
        return -15 if self.stopped.is_set() else self.code

    def stop(self, grace_s: float = 2.0) -> int:
        """End it."""
        self.stopped.set()
        return -15

    def limit_cpu(self) -> None:
        """Record after how many lines the limit was applied."""
        assert self.held_after is None, "held twice"
        self.held_after = self.read

    def collect(self, folder: Path, into: Path) -> None:
        """Collect nothing."""

    def tail(self, lines: int = 10) -> str:
        """An empty log."""
        return ""


class Scripted:
    """A launcher of ScriptedJobs by device; `scorer` is the job of the process that scores heads."""

    def __init__(self, jobs: dict[str, ScriptedJob], scorer: ScriptedJob | None = None) -> None:
        self.jobs, self.scorer = jobs, scorer
        self.given: dict[str, MeasureTask] = {}
        self.scored: list[MeasureTask] = []
        self.commands: dict[str, Command] = {}

    def start(self, command: Command) -> ScriptedJob:
        """Return the job of the device that the task file names."""
        assert command.module == "fleetune.profiling.measuring_process"
        task = json_io.read(MeasureTask, Path(command.arguments[-1]))
        if task.scoring is not None:
            assert self.scorer is not None, "nobody asked for scores"
            self.scored.append(task)
            return self.scorer
        self.given[task.device], self.commands[task.device] = task, command
        return self.jobs[task.device]


def costs(units: int, pace: float, sizes: tuple[int, ...] = (1, 2, 4, 6)) -> dict[str, Any]:
    """The result message of a device."""
    return {
        "event": "costs",
        "runtime_bytes": 1000,
        "profiling_s": 7.0 * pace,
        "units": [
            {
                "name": f"unit {number}",
                "forward_s": [pace * (1 + number)] * len(sizes),
                "backward_s": [pace * 2 * (1 + number)] * len(sizes),
                "activation_bytes": [100 + 10 * size for size in sizes],
                "workspace_bytes": [1000 * number + 3 * size for size in sizes],
                "flops": [7 * size for size in sizes],
            }
            for number in range(units)
        ],
        "gates": {way: {"forward": 0.1, "backward": 0.2} for way in ("skipped", "forward_only")},
    }
