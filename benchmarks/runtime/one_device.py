"""A one-device plan against a plain PyTorch loop, and on two threads against one: processes take turns by rounds."""

import os
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any

from benchmarks.report import Figure, median_and_spread
from benchmarks.runtime.metering import Stopwatch, Turn
from benchmarks.runtime.workload import BATCH_SAMPLES, MICRO_BATCH_SAMPLES, MODEL, Workload
from fleetune.launching import Command, Job, ProcessLauncher
from fleetune.models.source import source_folder

WARM_UP = 2  # turns of all that are not counted
ONE, TWO = 1, 2  # threads


class RecordingLauncher:
    """A process launcher that records the jobs it starts."""

    def __init__(self) -> None:
        self.jobs: list[Job] = []

    def start(self, command: Command) -> Job:
        """Start a job and record it."""
        self.jobs.append(ProcessLauncher().start(command))
        return self.jobs[-1]


class PlainLoop:
    """The process of the plain loop, stopped except during its turns."""

    def __init__(self, workload: Workload, rounds: int) -> None:
        self.turns: list[Turn] = []
        self._job = _start_plain_loop(workload, rounds)
        self._lines = self._job.lines()
        self._watch = Stopwatch(self._job.pid)

    def wait_loaded(self) -> None:
        """Wait until the process is ready for its first turn."""
        if next(self._lines, "") != "loaded":
            raise RuntimeError(f"the plain loop failed:\n{self._job.tail()}")

    def turn(self) -> None:
        """Let the process run one round."""
        with self._watch.turn(self.turns):
            next(self._lines)

    def stop(self) -> None:
        """End the process."""
        self._job.stop(grace_s=0.0)


@dataclass
class _Training:
    """A training by the partitioned runtime; the plain loop, if given, takes its turn right after it."""

    threads: int
    plain: PlainLoop | None = None
    turns: list[Turn] = field(default_factory=list)
    due: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))


def one_device(workload: Workload, rounds: int, repeats: int) -> list[Figure]:
    """Throughput of the runtime over the plain loop's, and of two threads over one.

    Values are medians of `rounds * repeats` rounds; spreads are over the medians of `repeats` parts of them. The second
    comparison needs two cores and is left out on a machine with one.
    """
    ours, plain, double = _take_turns(workload, rounds * repeats + WARM_UP)
    figures = [
        Figure(
            name="one_device_throughput",
            unit="x plain",
            target=0.97,
            better="higher",
            about=f"a one-device plan, {len(ours)} rounds in turns with a plain loop",
            **median_over_parts([b.wall_s / a.wall_s for a, b in zip(ours, plain, strict=True)], repeats),
        ),
        Figure(
            name="one_device_cpu",
            unit="x plain",
            better="higher",
            about="the same in CPU seconds of the worker, all threads",
            **median_over_parts([b.cpu_s / a.cpu_s for a, b in zip(ours, plain, strict=True)], repeats),
        ),
        Figure(
            name="one_device_samples_per_s",
            unit="samples/s",
            better="higher",
            value=BATCH_SAMPLES / median_and_spread([turn.wall_s for turn in ours])["value"],
        ),
    ]
    if double:
        figures.append(
            Figure(
                name="two_threads",
                unit="x one thread",
                target=1.6 if workload.model == MODEL else None,  # a smaller one has less to divide
                better="higher",
                about=f"throughput of that plan on 2 cores, {len(double)} rounds in turns with the same on one",
                **median_over_parts([a.wall_s / b.wall_s for a, b in zip(ours, double, strict=True)], repeats),
            )
        )
    return figures


def median_over_parts(ratios: list[float], repeats: int) -> dict[str, Any]:
    """Median of all ratios; the spread is the smallest and largest median of `repeats` equal parts."""
    size = len(ratios) // repeats
    medians = [median_and_spread(ratios[start : start + size])["value"] for start in range(0, size * repeats, size)]
    return {"value": median_and_spread(ratios)["value"], "spread": median_and_spread(medians)["spread"]}


def _take_turns(workload: Workload, turns: int) -> tuple[list[Turn], list[Turn], list[Turn]]:
    """Turns of the runtime on one thread, of the plain loop, and of the runtime on two threads (none with one core)."""
    plain = PlainLoop(workload, turns + 3)
    one, two = _Training(ONE, plain), _Training(TWO)
    sides = [one, two] if len(os.sched_getaffinity(0)) >= TWO else [one]
    loaded = threading.Barrier(len(sides), action=one.due.release)
    try:
        with ThreadPoolExecutor(len(sides)) as pool:
            nexts = (*sides[1:], one)
            jobs = [
                pool.submit(_train, workload, side, after, loaded, turns + 3)
                for side, after in zip(sides, nexts, strict=True)
            ]
        for job in jobs:
            job.result()
    finally:
        plain.stop()
    counted = slice(WARM_UP, turns)  # later rounds write a checkpoint
    return one.turns[counted], plain.turns[counted], two.turns[counted]


def _train(workload: Workload, own: _Training, after: _Training, loaded: threading.Barrier, rounds: int) -> None:
    """Run a training that hands over to the others between rounds. All trainings load and run their first round at
    once, so that none is stopped for long."""
    devices = tuple(replace(device, threads=own.threads) for device in workload.fleet.devices)
    held = replace(workload, fleet=replace(workload.fleet, devices=devices))
    launcher = RecordingLauncher()
    watches: list[Stopwatch] = []

    def committed(what: str, done: float, total: float, unit: str = "", detail: str = "") -> None:
        """Progress callback; the runtime calls it between rounds and after the last one."""
        if not watches:
            watches.append(Stopwatch(launcher.jobs[0].pid))
        turn = watches[0].stop()
        if turn is None:
            if own.plain is not None:
                own.plain.wait_loaded()
            loaded.wait()
        else:
            own.turns.append(turn)
            if own.plain is not None:
                own.plain.turn()
            after.due.release()
        if done < total:
            own.due.acquire()
        watches[0].go()

    try:
        held.train(held.plan("single"), rounds, f"threads-{own.threads}", launcher, committed)
    finally:
        loaded.abort()  # releases threads that still wait
        after.due.release()


def _start_plain_loop(workload: Workload, rounds: int) -> Job:
    weights = source_folder(workload.model)
    profile, data = workload.folder / "profile" / "model", workload.folder / "data" / "train"
    numbers = map(str, (BATCH_SAMPLES, MICRO_BATCH_SAMPLES, rounds))
    return ProcessLauncher().start(
        Command(
            module="benchmarks.runtime.plain_loop",
            arguments=(str(weights), str(profile), str(data), *numbers),
            log=workload.folder / "plain.log",
        )
    )
