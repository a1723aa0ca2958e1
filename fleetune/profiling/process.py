"""One measuring process at a device's site: given its task, listened to until it ends, its failure put into words."""

import json
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from fleetune.contracts import wire
from fleetune.contracts.fleet import Device
from fleetune.errors import FleetuneError, Infeasible, TryAgain, by_exit_code
from fleetune.launching import (
    MALLOC_ENVIRONMENT,
    Command,
    Job,
    Launcher,
    describe_exit,
    describe_used_memory,
    thread_environment,
)
from fleetune.launching.job import OUT_OF_MEMORY_CODES
from fleetune.models.source import local_folders
from fleetune.profiling.measurement import COSTS, ERROR, LOADING, MEASURING, PROGRESS
from fleetune.profiling.task import MeasureTask, ProfilingTask

TASK, LOG = "task.json", "log"
WORKER_BYTES = 400_000_000
"""What a process takes that has imported torch and transformers, where it did not live to say it itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Errand:
    """What a process is to do, and at which device."""

    device: Device
    given: MeasureTask
    answer: str = COSTS
    """The event that its last line must be."""
    doing: str = "profiling"
    done: str = "profiled"
    holds: str = "for the largest"
    """What it holds in memory of units at least."""
    advice: str = "give it more memory, lower training.micro_batch_samples or leave it out"
    """Where its memory is too small."""


class Started:
    """The processes that measure; once stopped, one that starts late is stopped too."""

    def __init__(self) -> None:
        self._jobs: list[Job] = []
        self._stopped = False
        self._lock = threading.Lock()

    def add(self, job: Job) -> None:
        """A process that has been started."""
        with self._lock:
            self._jobs.append(job)
            late = self._stopped
        if late:
            job.stop()

    def stop(self) -> None:
        """End them all."""
        with self._lock:
            self._stopped = True
        for job in self._jobs:
            job.stop()


@dataclass(slots=True)
class _Heard:
    """What a measuring process has said so far."""

    worker_bytes: int = WORKER_BYTES
    unit_bytes: int | None = None
    """Of its largest unit, or of whatever it holds at once."""
    last: dict[str, Any] = field(default_factory=dict)


def conduct(
    task: ProfilingTask, errand: Errand, launcher: Launcher, started: Started, progress: Callable[[float], None]
) -> dict[str, Any]:
    """Run an errand to its end; returns the line that answers it. progress(share of the work done)."""
    folder = task.work / errand.doing / errand.device.name
    wire.write(errand.given, folder / TASK)
    command = Command(
        module="fleetune.profiling.worker",
        arguments=("--task", str(folder / TASK)),
        environment={**MALLOC_ENVIRONMENT, **thread_environment(errand.given.threads)},
        log=folder / LOG,
        reads=(folder, task.model_folder, task.data_folder, *local_folders(errand.given.model)),
    )
    job = launcher.start(command)
    started.add(job)
    heard = _listen(job, progress)
    code = job.wait()
    if code != 0 or heard.last.get("event") != errand.answer:
        raise _failure(task, errand, job, heard)
    return heard.last


def _listen(job: Job, progress: Callable[[float], None]) -> _Heard:
    """Everything until it ends; its share of the processor binds it from the moment it measures."""
    heard = _Heard()
    for line in job.lines():
        try:
            heard.last = json.loads(line)
        except ValueError:  # it was killed in the middle of a line
            continue
        event = heard.last["event"]
        if event == LOADING:
            heard.worker_bytes, heard.unit_bytes = heard.last["runtime_bytes"], heard.last["unit_bytes"]
        elif event == MEASURING:
            job.limit_cpu()
        elif event == PROGRESS:
            progress(heard.last["done"] / heard.last["total"])
    return heard


def _failure(task: ProfilingTask, errand: Errand, job: Job, heard: _Heard) -> FleetuneError:
    """Why a measuring process gave no answer."""
    code, device = job.wait() or 0, errand.device
    log = task.work / errand.doing / device.name / LOG
    if job.out_of_memory:
        return Infeasible(
            f"device {device.name} ran out of {_too_small(task, errand, heard, describe_used_memory(job))}; log: {log}"
        )
    if heard.last.get("event") == ERROR:
        said = heard.last["message"]
        why = f"device {device.name} could not be {errand.done}: {said}"
        return by_exit_code(code or TryAgain.exit_code, why)
    if code in OUT_OF_MEMORY_CODES:
        return TryAgain(
            f"device {device.name}: {errand.doing} was {describe_exit(code)}; it may have run out of "
            f"{_too_small(task, errand, heard)}; log: {log}"
        )
    return TryAgain(f"device {device.name}: {errand.doing} {describe_exit(code)}; log: {log}")


def _too_small(task: ProfilingTask, errand: Errand, heard: _Heard, used: str = "") -> str:
    """How much there was, was `used`, and how much it would have taken."""
    model = task.model.source or (task.model.config or {}).get("model_type")
    more = f" and {_in_words(heard.unit_bytes)} {errand.holds}" if heard.unit_bytes is not None else ""
    return (
        f"its {_in_words(errand.device.memory_bytes)}{used} while {errand.doing} {model}: a worker needs about "
        f"{_in_words(heard.worker_bytes)} before it holds any unit{more}, activations aside; {errand.advice}"
    )


def _in_words(amount_bytes: float) -> str:
    return f"{amount_bytes / 1e9:.2f} GB"
