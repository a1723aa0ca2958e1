"""Runs one measuring process at a device's site: passes its task, reads its messages, and explains its failure."""

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from fleetune.contracts import json_io
from fleetune.contracts.fleet import Device
from fleetune.errors import FleetuneError, Infeasible, TryAgain, by_exit_code
from fleetune.formatting import gigabytes
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
from fleetune.launching.running_jobs import RunningJobs
from fleetune.models.source import local_folders
from fleetune.profiling.messages import COSTS, ERROR, LOADING, MEASURING, PROGRESS
from fleetune.profiling.task import MeasureTask, ProfilingTask

TASK, LOG = "task.json", "log"
WORKER_BYTES = 400_000_000
"""Assumed memory of a process with torch and transformers, if it ended before reporting its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSpec:
    """The measuring process of a device: its task, and the words of its error messages."""

    device: Device
    task: MeasureTask
    result_event: str = COSTS
    """Event of the last message, which carries the result."""
    activity: str = "profiling"
    activity_past: str = "profiled"
    held_units: str = "for the largest"
    """Description of the units that it must hold in memory."""
    advice: str = "give it more memory, lower training.micro_batch_samples or leave it out"
    """Advice for a device with too little memory."""


@dataclass(slots=True)
class _Messages:
    """Messages of a measuring process so far."""

    worker_bytes: int = WORKER_BYTES
    unit_bytes: int | None = None
    """Bytes of its largest unit, or of all that it holds at once."""
    last: dict[str, Any] = field(default_factory=dict)


def run_measuring_job(
    task: ProfilingTask,
    spec: JobSpec,
    launcher: Launcher,
    running: RunningJobs,
    progress: Callable[[float], None],
) -> dict[str, Any]:
    """Run a measuring process to its end; returns its last message. `progress` receives the share of work done."""
    folder = task.work / spec.activity / spec.device.name
    json_io.write(spec.task, folder / TASK)
    command = Command(
        module="fleetune.profiling.measuring_process",
        arguments=("--task", str(folder / TASK)),
        environment={**MALLOC_ENVIRONMENT, **thread_environment(spec.task.threads)},
        log=folder / LOG,
        reads=(folder, task.model_folder, task.data_folder, *local_folders(spec.task.model)),
    )
    job = launcher.start(command)
    running.add(job)
    messages = _listen(job, progress)
    code = job.wait()
    if code != 0 or messages.last.get("event") != spec.result_event:
        raise _failure(task, spec, job, messages)
    return messages.last


def _listen(job: Job, progress: Callable[[float], None]) -> _Messages:
    """Read all messages; the CPU quota applies from the start of the measurement."""
    messages = _Messages()
    for line in job.lines():
        try:
            messages.last = json.loads(line)
        except ValueError:  # it was killed in the middle of a line
            continue
        event = messages.last["event"]
        if event == LOADING:
            messages.worker_bytes, messages.unit_bytes = messages.last["runtime_bytes"], messages.last["unit_bytes"]
        elif event == MEASURING:
            job.limit_cpu()
        elif event == PROGRESS:
            progress(messages.last["done"] / messages.last["total"])
    return messages


def _failure(task: ProfilingTask, spec: JobSpec, job: Job, messages: _Messages) -> FleetuneError:
    """The error for a measuring process that ended without a result."""
    code, device = job.wait() or 0, spec.device
    log = task.work / spec.activity / device.name / LOG
    if job.out_of_memory:
        return Infeasible(
            f"device {device.name} ran out of "
            f"{_memory_sentence(task, spec, messages, describe_used_memory(job))}; log: {log}"
        )
    if messages.last.get("event") == ERROR:
        said = messages.last["message"]
        why = f"device {device.name} could not be {spec.activity_past}: {said}"
        return by_exit_code(code or TryAgain.exit_code, why)
    if code in OUT_OF_MEMORY_CODES:
        return TryAgain(
            f"device {device.name}: {spec.activity} was {describe_exit(code)}; it may have run out of "
            f"{_memory_sentence(task, spec, messages)}; log: {log}"
        )
    return TryAgain(f"device {device.name}: {spec.activity} {describe_exit(code)}; log: {log}")


def _memory_sentence(task: ProfilingTask, spec: JobSpec, messages: _Messages, used: str = "") -> str:
    """Sentence with the available, used and needed memory."""
    model = task.model.source or (task.model.config or {}).get("model_type")
    more = f" and {gigabytes(messages.unit_bytes)} {spec.held_units}" if messages.unit_bytes is not None else ""
    return (
        f"its {gigabytes(spec.device.memory_bytes)}{used} while {spec.activity} {model}: a worker needs about "
        f"{gigabytes(messages.worker_bytes)} before it holds any unit{more}, activations aside; {spec.advice}"
    )
