"""Runs one measuring process at a device's site: passes its task, reads its messages, and explains its failure."""

import json
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from fleetune.contracts import json_io
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
from fleetune.profiling.messages import COSTS, ERROR, LOADING, MEASURING, PROGRESS
from fleetune.profiling.task import MeasureTask, ProfilingTask

TASK, LOG = "task.json", "log"
WORKER_BYTES = 400_000_000
"""Assumed memory of a process with torch and transformers, if it ended before reporting its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Errand:
    """A task for the measuring process of a device."""

    device: Device
    given: MeasureTask
    answer: str = COSTS
    """Event of the last message, which carries the result."""
    doing: str = "profiling"
    done: str = "profiled"
    holds: str = "for the largest"
    """Description of the units that it must hold in memory."""
    advice: str = "give it more memory, lower training.micro_batch_samples or leave it out"
    """Advice for a device with too little memory."""


class Started:
    """The running measuring processes; after `stop`, a process that starts late is stopped too."""

    def __init__(self) -> None:
        self._jobs: list[Job] = []
        self._stopped = False
        self._lock = threading.Lock()

    def add(self, job: Job) -> None:
        """Register a started process."""
        with self._lock:
            self._jobs.append(job)
            late = self._stopped
        if late:
            job.stop()

    def stop(self) -> None:
        """Stop all processes."""
        with self._lock:
            self._stopped = True
        for job in self._jobs:
            job.stop()


@dataclass(slots=True)
class _Heard:
    """Messages of a measuring process so far."""

    worker_bytes: int = WORKER_BYTES
    unit_bytes: int | None = None
    """Bytes of its largest unit, or of all that it holds at once."""
    last: dict[str, Any] = field(default_factory=dict)


def conduct(
    task: ProfilingTask, errand: Errand, launcher: Launcher, started: Started, progress: Callable[[float], None]
) -> dict[str, Any]:
    """Run a measuring process to its end; returns its last message. `progress` receives the share of work done."""
    folder = task.work / errand.doing / errand.device.name
    json_io.write(errand.given, folder / TASK)
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
    """Read all messages; the CPU quota applies from the start of the measurement."""
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
    """The error for a measuring process that ended without a result."""
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
    """Sentence with the available, used and needed memory."""
    model = task.model.source or (task.model.config or {}).get("model_type")
    more = f" and {_in_words(heard.unit_bytes)} {errand.holds}" if heard.unit_bytes is not None else ""
    return (
        f"its {_in_words(errand.device.memory_bytes)}{used} while {errand.doing} {model}: a worker needs about "
        f"{_in_words(heard.worker_bytes)} before it holds any unit{more}, activations aside; {errand.advice}"
    )


def _in_words(amount_bytes: float) -> str:
    return f"{amount_bytes / 1e9:.2f} GB"
