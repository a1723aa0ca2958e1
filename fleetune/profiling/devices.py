"""Measures on every device that no earlier run has measured, all at once, each in its own place and limits."""

import json
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from typing import Any

from fleetune.contracts import wire
from fleetune.contracts.config.model import ModelRequest
from fleetune.contracts.fleet import Device
from fleetune.errors import FleetuneError, Infeasible, Refused, TryAgain, by_exit_code
from fleetune.launching import KEEPS_MEMORY, Command, Job, exit_in_words
from fleetune.launching.job import OUT_OF_MEMORY_CODES
from fleetune.models.source import folders, settled
from fleetune.profiling.answer import COSTS, ERROR, LOADING, MEASURING, PROGRESS, Answer, answer_of
from fleetune.profiling.kept import key_of
from fleetune.profiling.task import MeasureTask, ProfilingTask

PASSES = 5
TASK, LOG = "task.json", "log"
WITHOUT_EFFECT = ("device", "profile_folder", "data_folder", "memory_bytes")
"""Of a MeasureTask, on times. Memory that binds is part of a device's fingerprint; its share of a machine's memory
shrinks with every device that joins it."""
WORKER_BYTES = 400_000_000
"""What a process takes that has imported torch and transformers, where it did not live to say it itself."""


def answers(task: ProfilingTask, sizes: tuple[int, ...]) -> dict[str, Answer]:
    """What every device of the fleet costs, by name; the first failure ends the others."""
    model = settled(task.model)
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
    started = _Started()
    with ThreadPoolExecutor(max_workers=len(new)) as pool:
        jobs = [pool.submit(_measure_one, task, one, progress, started) for one in new]
        try:
            return {**found, **dict(job.result() for job in as_completed(jobs))}
        except BaseException:
            started.stop()
            raise


@dataclass(frozen=True, slots=True, kw_only=True)
class _Asked:
    """One device, what it is to measure, and the key that the answer is kept under (empty: nowhere)."""

    device: Device
    given: MeasureTask
    key: str


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


@dataclass(slots=True)
class _Heard:
    """What a measuring process has said so far."""

    worker_bytes: int = WORKER_BYTES
    unit_bytes: int | None = None
    """Of its largest unit."""
    last: dict[str, Any] = field(default_factory=dict)


def _asked(task: ProfilingTask, device: Device, model: ModelRequest, sizes: tuple[int, ...]) -> _Asked:
    """`model` without a name that only the hub knows; the key has it as it was asked for."""
    given = MeasureTask(
        device=device.name,
        model=model,
        profile_folder=str(task.folder),
        data_folder=str(task.data_folder),
        accelerator=device.accelerator,
        cores=device.cores if device.emulated else None,
        memory_bytes=device.memory_bytes,
        batch_sizes=sizes,
        passes=PASSES,
    )
    if task.kept is None:
        return _Asked(device=device, given=given, key="")
    plain = {name: value for name, value in wire.dump(given).items() if name not in WITHOUT_EFFECT}
    plain["model"] = wire.dump(task.model)
    return _Asked(device=device, given=given, key=key_of(plain, device.fingerprint, task.folder))


def _known(task: ProfilingTask, asked: _Asked) -> Answer | None:
    """An answer of an earlier run."""
    name = asked.device.name
    try:
        entry = task.kept.find(asked.key) if task.kept else None
    except Refused as error:
        task.note(f"{name}: measured anew, its kept times are damaged ({error})")
        return None
    if entry is None:
        return None
    task.note(f"{name}: times of {entry.run} kept (same device, model, trainable set and batch sizes)")
    return entry.answer


def _measure_one(
    task: ProfilingTask, asked: _Asked, progress: Callable[[str, float], None], started: _Started
) -> tuple[str, Answer]:
    device = asked.device
    folder = task.work / "profiling" / device.name
    wire.write(asked.given, folder / TASK)
    command = Command(
        module="fleetune.profiling.worker",
        arguments=("--task", str(folder / TASK)),
        environment=KEEPS_MEMORY,
        log=folder / LOG,
        reads=(folder, task.folder, task.data_folder, *folders(asked.given.model)),
    )
    job = task.sites.launcher(device.name).start(command)
    started.add(job)
    heard = _listen(job, lambda share: progress(device.name, share))
    code = job.wait()
    if code != 0 or heard.last.get("event") != COSTS:
        raise _failure(task, device, job, heard)
    answer = answer_of(heard.last, f"answer of {device.name}")
    _keep(task, asked, answer)
    return device.name, answer


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
            job.hold()
        elif event == PROGRESS:
            progress(heard.last["done"] / heard.last["total"])
    return heard


def _keep(task: ProfilingTask, asked: _Asked, answer: Answer) -> None:
    if task.kept is None:
        return
    try:
        task.kept.keep(asked.key, answer)
    except OSError as error:  # the times are good all the same
        task.note(f"{asked.device.name}: its times cannot be kept for later runs ({error})")


def _failure(task: ProfilingTask, device: Device, job: Job, heard: _Heard) -> FleetuneError:
    """Why a measuring process gave no answer."""
    code = job.wait() or 0
    log = task.work / "profiling" / device.name / LOG
    if job.out_of_memory:
        return Infeasible(f"device {device.name} ran out of {_too_small(task, device, heard)}; log: {log}")
    if heard.last.get("event") == ERROR:
        said = heard.last["message"]
        return by_exit_code(code or TryAgain.exit_code, f"device {device.name} could not be profiled: {said}")
    if code in OUT_OF_MEMORY_CODES:
        return TryAgain(
            f"device {device.name}: profiling was {exit_in_words(code)}; it may have run out of "
            f"{_too_small(task, device, heard)}; log: {log}"
        )
    return TryAgain(f"device {device.name}: profiling {exit_in_words(code)}; log: {log}")


def _too_small(task: ProfilingTask, device: Device, heard: _Heard) -> str:
    """How much there was, and how much it would have taken."""
    model = task.model.source or (task.model.config or {}).get("model_type")
    more = f" and {_in_words(heard.unit_bytes)} for the largest" if heard.unit_bytes is not None else ""
    return (
        f"its {_in_words(device.memory_bytes)} while profiling {model}: a worker needs about "
        f"{_in_words(heard.worker_bytes)} before it holds any unit{more}, activations aside; give it more memory, "
        "lower training.micro_batch_samples or leave it out"
    )


def _in_words(amount_bytes: float) -> str:
    return f"{amount_bytes / 1e9:.2f} GB"
