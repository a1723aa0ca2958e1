"""Measures all devices without a cached measurement concurrently, each at its site and within its limits."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, replace

from fleetune.contracts import json_io
from fleetune.contracts.fleet import Device
from fleetune.contracts.run_config import ModelRequest
from fleetune.errors import Refused
from fleetune.models.source import with_local_source
from fleetune.profiling.cache import key_of
from fleetune.profiling.measuring_process import Errand, Started, conduct
from fleetune.profiling.messages import DeviceMeasurement, measurement_of
from fleetune.profiling.task import MeasureTask, ProfilingTask

PASSES = 5
WITHOUT_EFFECT = ("device", "model_folder", "data_folder", "memory_bytes")
"""Fields of a MeasureTask that do not affect times. A memory limit is part of a device's fingerprint, whereas its share
of a machine's memory shrinks with every device on that machine."""


def answers(task: ProfilingTask, sizes: tuple[int, ...]) -> dict[str, DeviceMeasurement]:
    """Measurements of all devices by name; the first failure stops the others."""
    model = with_local_source(task.model)
    asked = [_asked(task, device, model, sizes) for device in task.fleet.devices]
    found = {one.device.name: answer for one in asked if (answer := _known(task, one)) is not None}
    new = [one for one in asked if one.device.name not in found]
    done = {one.device.name: float(one.device.name in found) for one in asked}

    def progress(device: str, share: float) -> None:
        done[device] = share
        task.progress("profiling", sum(done.values()) / len(done) * 100, 100, "%")

    if not new:
        task.progress("profiling", 100, 100, "%")
        return found
    started = Started()
    with ThreadPoolExecutor(max_workers=len(new)) as pool:
        jobs = [pool.submit(_measure_one, task, one, progress, started) for one in new]
        try:
            return {**found, **dict(job.result() for job in as_completed(jobs))}
        except BaseException:
            started.stop()
            raise


@dataclass(frozen=True, slots=True, kw_only=True)
class _Asked:
    """A device, its task, and the cache key of its measurement (empty without a cache)."""

    device: Device
    given: MeasureTask
    key: str


def _asked(task: ProfilingTask, device: Device, model: ModelRequest, sizes: tuple[int, ...]) -> _Asked:
    """Build the device's task and its cache key. The task names the local model folder, the key the requested model."""
    given = MeasureTask(
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
    )
    if task.cache is None:
        return _Asked(device=device, given=given, key="")
    plain = {name: value for name, value in json_io.dump(given).items() if name not in WITHOUT_EFFECT}
    plain["model"] = json_io.dump(replace(task.model, revision=None))  # weights of another revision take the same time
    return _Asked(device=device, given=given, key=key_of(plain, device.fingerprint, task.model_folder))


def _known(task: ProfilingTask, asked: _Asked) -> DeviceMeasurement | None:
    """The cached measurement of an earlier run, if any."""
    name = asked.device.name
    try:
        entry = task.cache.load(asked.key) if task.cache else None
    except Refused as error:
        task.note(f"{name}: measured anew, its kept times are damaged ({error})")
        return None
    if entry is None:
        return None
    task.note(f"{name}: times of {entry.run} kept (same device, model, trainable set and batch sizes)")
    return entry.answer


def _measure_one(
    task: ProfilingTask, asked: _Asked, progress: Callable[[str, float], None], started: Started
) -> tuple[str, DeviceMeasurement]:
    name = asked.device.name
    errand = Errand(device=asked.device, given=asked.given)
    line = conduct(task, errand, task.sites.launcher(name), started, lambda share: progress(name, share))
    answer = measurement_of(line, f"answer of {name}")
    _keep(task, asked, answer)
    return name, answer


def _keep(task: ProfilingTask, asked: _Asked, answer: DeviceMeasurement) -> None:
    if task.cache is None:
        return
    try:
        task.cache.store(asked.key, answer)
    except OSError as error:  # the measurement is valid without the cache
        task.note(f"{asked.device.name}: its times cannot be kept for later runs ({error})")
