"""Measures all devices without a cached measurement concurrently, each at its site and within its limits."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, replace

from fleetune.contracts import json_io
from fleetune.contracts.fleet import Device
from fleetune.contracts.run_config import ModelRequest
from fleetune.errors import Refused
from fleetune.launching.running_jobs import RunningJobs
from fleetune.models.source import with_local_source
from fleetune.profiling.cache import cache_key
from fleetune.profiling.measuring_job import JobSpec, run_measuring_job
from fleetune.profiling.messages import DeviceMeasurement, parse_measurement
from fleetune.profiling.task import MeasureTask, ProfilingTask

PASSES = 5
FIELDS_WITHOUT_EFFECT = ("device", "model_folder", "data_folder", "memory_bytes", "codecs")
"""Fields of a MeasureTask that do not affect times. A memory limit is part of a device's fingerprint, whereas its share
of a machine's memory shrinks with every device on that machine. Codecs are timed after all units."""


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
    measure_task = MeasureTask(
        device=device.name,
        model=model,
        model_folder=str(task.model_folder),
        data_folder=str(task.data_folder),
        accelerator=device.accelerator,
        cores=device.cores if device.emulated else None,
        threads=device.threads,
        memory_bytes=device.memory_bytes,
        batch_sizes=sizes,
        passes=PASSES,
        codecs=task.codecs,
    )
    if task.cache is None:
        return _DeviceRequest(device=device, task=measure_task, key="")
    plain = {name: value for name, value in json_io.dump(measure_task).items() if name not in FIELDS_WITHOUT_EFFECT}
    plain["model"] = json_io.dump(replace(task.model, revision=None))  # weights of another revision take the same time
    return _DeviceRequest(device=device, task=measure_task, key=cache_key(plain, device.fingerprint, task.model_folder))


def _cached(task: ProfilingTask, request: _DeviceRequest) -> DeviceMeasurement | None:
    """The cached measurement of an earlier run, if any; one without the codecs that this run needs does not count."""
    name = request.device.name
    try:
        entry = task.cache.load(request.key) if task.cache else None
    except Refused as error:
        task.note(f"{name}: measured again, because its cached times are damaged ({error})")
        return None
    if entry is None or (request.task.codecs and not entry.answer.codecs):
        return None
    task.note(f"{name}: times of {entry.run} reused (same device, model, trainable set and batch sizes)")
    return entry.answer


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
