"""The profile of a model on a fleet: prepares what training will read, then measures on all devices at once (or, for
devices that are not there, works out what they would have measured)."""

import json
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from fleetune.contracts import wire
from fleetune.contracts.config.data import DataRequest
from fleetune.contracts.config.model import ModelRequest
from fleetune.contracts.config.training import TrainingRequest
from fleetune.contracts.fleet import Device, Fleet
from fleetune.contracts.profile import DeviceTimes, Profile
from fleetune.contracts.progress import Progress
from fleetune.errors import TryAgain, by_exit_code
from fleetune.launching import Command, Job, Launcher, exit_in_words
from fleetune.models.graph import Graph
from fleetune.models.skeleton import saved_configuration
from fleetune.profiling.preparation import Folders, prepare_all
from fleetune.profiling.simulated import simulated_times, works
from fleetune.profiling.units import unit_sizes
from fleetune.profiling.worker import MeasureTask

PASSES = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfilingTask:
    """The whole input of the profile stage."""

    fleet: Fleet
    model: ModelRequest
    data: DataRequest
    training: TrainingRequest
    seed: int
    folder: Path
    """Gets profile.json, graph.json, start.safetensors and model/config.json."""
    data_folder: Path
    """Gets the prepared data."""
    work: Path
    launcher: Launcher
    progress: Progress


def profile(task: ProfilingTask) -> Profile:
    """Prepare data, starting weights and the graph, then measure; the profile is written and returned."""
    folders = Folders(profile=task.folder, data=task.data_folder)
    graph, module = prepare_all(task.model, task.data, task.seed, folders, task.progress)
    sizes = batch_sizes(task.training.micro_batch_samples)
    found = _simulate(task, sizes, graph, module) if task.fleet.simulated else _measure(task, sizes)
    made = Profile(
        model=task.model.source or str((task.model.config or {}).get("model_type")),
        units=unit_sizes(graph, module, found.activation_bytes, found.flops, task.training.micro_batch_samples),
        batch_sizes=sizes,
        times=found.times,
        optimizer_bytes_per_param_byte=task.training.optimizer_bytes_per_param_byte,
    )
    wire.write(made, task.folder / "profile.json")
    return made


@dataclass(frozen=True, slots=True, kw_only=True)
class _Found:
    """What units cost: bytes and FLOPs per sample in the order of units, times per device."""

    activation_bytes: list[int]
    flops: list[int]
    times: tuple[DeviceTimes, ...]


def batch_sizes(micro_batch_samples: int) -> tuple[int, ...]:
    """Powers of two below a micro-batch, and the micro-batch itself."""
    sizes = [1]
    while sizes[-1] * 2 < micro_batch_samples:
        sizes.append(sizes[-1] * 2)
    return tuple(dict.fromkeys([*sizes, micro_batch_samples]))


def _simulate(task: ProfilingTask, sizes: tuple[int, ...], graph: Graph, module: nn.Module) -> _Found:
    """Devices that are not there: worked out, and no process is started."""
    model_type = str(saved_configuration(task.folder / "model").model_type)
    of_units = works(graph, module)
    task.progress("profiling", 100, 100, "%")
    return _Found(
        activation_bytes=[work.activation_bytes for work in of_units],
        flops=[work.forward_flops for work in of_units],
        times=tuple(simulated_times(device, model_type, of_units, sizes) for device in task.fleet.devices),
    )


def _measure(task: ProfilingTask, sizes: tuple[int, ...]) -> _Found:
    """Bytes and FLOPs as the first device saw them."""
    answers = _answers(task, sizes)
    first = answers[task.fleet.devices[0].name]["units"]
    return _Found(
        activation_bytes=[_per_sample(u["activation_bytes"], sizes) for u in first],
        flops=[_per_sample(u["flops"], sizes) for u in first],
        times=tuple(_times(device.name, answers[device.name]) for device in task.fleet.devices),
    )


def _answers(task: ProfilingTask, sizes: tuple[int, ...]) -> dict[str, dict[str, Any]]:
    """Every device at once; the first failure ends the others."""
    done = dict.fromkeys((d.name for d in task.fleet.devices), 0.0)

    def progress(device: str, share: float) -> None:
        done[device] = share
        task.progress("profiling", sum(done.values()) / len(done) * 100, 100, "%")

    started = _Started()
    with ThreadPoolExecutor(max_workers=len(task.fleet.devices)) as pool:
        jobs = [pool.submit(_measure_one, task, device, sizes, progress, started) for device in task.fleet.devices]
        try:
            return dict(job.result() for job in as_completed(jobs))
        except BaseException:
            started.stop()
            raise


class _Started:
    """The processes that measure; once stopped, one that starts late is stopped too."""

    def __init__(self) -> None:
        self._jobs: list[Job] = []
        self._stopped = False
        self._lock = threading.Lock()

    def add(self, job: Job) -> None:
        with self._lock:
            self._jobs.append(job)
            late = self._stopped
        if late:
            job.stop()

    def stop(self) -> None:
        with self._lock:
            self._stopped = True
        for job in self._jobs:
            job.stop()


def _measure_one(
    task: ProfilingTask,
    device: Device,
    sizes: tuple[int, ...],
    progress: Callable[[str, float], None],
    started: _Started,
) -> tuple[str, dict[str, Any]]:
    given = MeasureTask(
        device=device.name,
        model=task.model,
        profile_folder=str(task.folder),
        data_folder=str(task.data_folder),
        accelerator=device.accelerator,
        cores=device.cores if device.emulated else None,
        memory_bytes=device.memory_bytes,
        batch_sizes=sizes,
        passes=PASSES,
    )
    path = task.work / "profiling" / f"{device.name}.json"
    wire.write(given, path)
    log = path.with_suffix(".log")
    job = task.launcher.start(Command(module="fleetune.profiling.worker", arguments=("--task", str(path)), log=log))
    started.add(job)
    last: dict[str, Any] = {}
    for line in job.lines():
        last = json.loads(line)
        if last["event"] == "progress":
            progress(device.name, last["done"] / last["total"])
    code = job.wait()
    if last.get("event") == "error":
        raise by_exit_code(code or TryAgain.exit_code, f"device {device.name} could not be profiled: {last['message']}")
    if code != 0 or last.get("event") != "costs":
        raise TryAgain(f"device {device.name}: profiling {exit_in_words(code or 0)}; log: {log}")
    return device.name, last


def _times(device: str, answer: dict[str, Any]) -> DeviceTimes:
    return DeviceTimes(
        device=device,
        runtime_bytes=answer["runtime_bytes"],
        forward_s=tuple(tuple(u["forward_s"]) for u in answer["units"]),
        backward_s=tuple(tuple(u["backward_s"]) for u in answer["units"]),
    )


def _per_sample(amounts: list[int], sizes: tuple[int, ...]) -> int:
    """Slope between the smallest and the largest batch size, never below 0."""
    if len(sizes) == 1:
        return int(amounts[0] / sizes[0])
    return max(0, round((amounts[-1] - amounts[0]) / (sizes[-1] - sizes[0])))
