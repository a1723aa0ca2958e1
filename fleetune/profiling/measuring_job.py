"""Runs measuring processes at the sites of devices: passes tasks, reads messages, and explains failures.

All devices without a cached measurement are measured concurrently, each at its site and within its limits.
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field, replace
from typing import Any

from fleetune.contracts import json_io
from fleetune.contracts.fleet import Device
from fleetune.contracts.run_config import ModelRequest
from fleetune.contracts.task import message_of
from fleetune.errors import FleetuneError, Infeasible, Refused, TryAgain, by_exit_code
from fleetune.formatting import gigabytes
from fleetune.launching import (
    MALLOC_ENVIRONMENT,
    MODEL_MODULES,
    Command,
    Job,
    Launcher,
    describe_exit,
    describe_used_memory,
    thread_environment,
)
from fleetune.launching.job import OUT_OF_MEMORY_CODES, exit_code_after_output
from fleetune.launching.running_jobs import RunningJobs
from fleetune.models.source import local_folders, with_local_source
from fleetune.profiling.cache import cache_key
from fleetune.profiling.messages import COSTS, ERROR, LOADING, MEASURING, PROGRESS, DeviceMeasurement, parse_measurement
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
        preloads=MODEL_MODULES,
        environment={**MALLOC_ENVIRONMENT, **thread_environment(spec.task.threads)},
        log=folder / LOG,
        reads=(folder, task.model_folder, task.data_folder, *local_folders(spec.task.model)),
    )
    job = launcher.start(command)
    running.add(job)
    messages = _listen(job, progress)
    code = exit_code_after_output(job, f"device {spec.device.name}: {spec.activity}")
    if code != 0 or messages.last.get("event") != spec.result_event:
        raise _failure(task, spec, job, messages)
    return messages.last


def _listen(job: Job, progress: Callable[[float], None]) -> _Messages:
    """Read all messages; the CPU quota applies from the start of the measurement."""
    messages = _Messages()
    for line in job.lines():
        if not (message := message_of(line)):
            continue
        messages.last, event = message, message["event"]
        if event == LOADING:
            messages.worker_bytes, messages.unit_bytes = message["runtime_bytes"], message["unit_bytes"]
        elif event == MEASURING:
            job.limit_cpu()
        elif event == PROGRESS:
            progress(message["done"] / (message["total"] or 1))
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


PASSES = 5
FIELDS_WITHOUT_EFFECT = ("device", "model_folder", "data_folder", "memory_bytes", "codecs", "gates", "partial")
"""Fields of a MeasureTask that do not affect times. A memory limit is part of a device's fingerprint, whereas its share
of a machine's memory shrinks with every device on that machine. What else is asked for is timed after all units."""


def measure_fleet(task: ProfilingTask, sizes: tuple[int, ...]) -> dict[str, DeviceMeasurement]:
    """Measurements of all devices by name; the first failure stops the others."""
    model = with_local_source(task.model)
    requests = [_device_request(task, device, model, sizes) for device in task.fleet.devices]
    found = {
        request.device.name: measurement for request in requests if (measurement := _cached(task, request)) is not None
    }
    unmeasured = [request for request in requests if request.device.name not in found]
    done = {request.device.name: float(request.device.name in found) for request in requests}

    def progress(device: str, share: float) -> None:
        done[device] = share
        task.progress("profiling", sum(done.values()) / len(done) * 100, 100, "%")

    if not unmeasured:
        task.progress("profiling", 100, 100, "%")
        return found
    running = RunningJobs()
    with ThreadPoolExecutor(max_workers=len(unmeasured)) as pool:
        jobs = [pool.submit(_measure_one, task, request, progress, running) for request in unmeasured]
        try:
            return {**found, **dict(job.result() for job in as_completed(jobs))}
        except BaseException:
            running.stop()
            raise


@dataclass(frozen=True, slots=True, kw_only=True)
class _DeviceRequest:
    """A device, its task, and the cache key of its measurement (empty without a cache)."""

    device: Device
    task: MeasureTask
    key: str


def _device_request(task: ProfilingTask, device: Device, model: ModelRequest, sizes: tuple[int, ...]) -> _DeviceRequest:
    """Build the device's task and its cache key. The task names the local model folder, the key the requested model."""
    measure_task = task.on_device(
        device,
        model,
        batch_sizes=sizes,
        passes=PASSES,
        codecs=task.codecs,
        gates=task.scores,
        partial=task.partial,
        optimizer=task.training.optimizer,
        momentum=task.training.momentum,
    )
    if task.cache is None:
        return _DeviceRequest(device=device, task=measure_task, key="")
    plain = {name: value for name, value in json_io.dump(measure_task).items() if name not in FIELDS_WITHOUT_EFFECT}
    plain["model"] = json_io.dump(replace(task.model, revision=None))  # weights of another revision take the same time
    return _DeviceRequest(device=device, task=measure_task, key=cache_key(plain, device.fingerprint, task.model_folder))


def _cached(task: ProfilingTask, request: _DeviceRequest) -> DeviceMeasurement | None:
    """The cached measurement of an earlier run, if any; one that lacks something wanted does not count."""
    name = request.device.name
    try:
        entry = task.cache.load(request.key) if task.cache else None
    except Refused as error:
        task.note(f"{name}: measured again, because its cached times are damaged ({error})")
        return None
    if entry is None or _lacks(entry.answer, request.task):
        return None
    task.note(f"{name}: times of {entry.run} reused (same device, model, trainable set and batch sizes)")
    return entry.answer


def _lacks(answer: DeviceMeasurement, wanted: MeasureTask) -> bool:
    return (
        (wanted.codecs and not answer.codecs)
        or (wanted.gates and answer.gates is None)
        or (wanted.partial and answer.partial is None)
    )


def _measure_one(
    task: ProfilingTask, request: _DeviceRequest, progress: Callable[[str, float], None], running: RunningJobs
) -> tuple[str, DeviceMeasurement]:
    name = request.device.name
    spec = JobSpec(device=request.device, task=request.task)
    message = run_measuring_job(task, spec, task.sites.launcher(name), running, lambda share: progress(name, share))
    measurement = parse_measurement(message, f"answer of {name}")
    _store(task, request, measurement)
    return name, measurement


def _store(task: ProfilingTask, request: _DeviceRequest, measurement: DeviceMeasurement) -> None:
    if task.cache is None:
        return
    try:
        task.cache.store(request.key, measurement)
    except OSError as error:  # the measurement is valid without the cache
        task.note(f"{request.device.name}: its times cannot be cached for later runs ({error})")
