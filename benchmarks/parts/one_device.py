"""A one-device plan beside a plain PyTorch loop, and on two threads beside itself on one: processes that take turns, a
round at a time."""

import os
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any

from benchmarks.parts.bench_model import BATCH_SAMPLES, MICRO_BATCH_SAMPLES, MODEL, Measured
from benchmarks.parts.turns import Stopwatch, Turn
from benchmarks.report import Figure, middle
from fleetune.launching import Command, Job, ProcessLauncher
from fleetune.models.source import source_folder

WARM_UP = 2  # turns of all that are not counted
ONE, TWO = 1, 2  # threads


class Recording:
    """Remembers the jobs it started."""

    def __init__(self) -> None:
        self.jobs: list[Job] = []

    def start(self, command: Command) -> Job:
        """Start and remember."""
        self.jobs.append(ProcessLauncher().start(command))
        return self.jobs[-1]


class PlainLoop:
    """The plain loop's process, which stands still but for its turns."""

    def __init__(self, measured: Measured, rounds: int) -> None:
        self.turns: list[Turn] = []
        self._job = _plain_job(measured, rounds)
        self._lines = self._job.lines()
        self._watch = Stopwatch(self._job.pid)

    def wait_loaded(self) -> None:
        """Until it is ready for its first turn."""
        if next(self._lines, "") != "loaded":
            raise RuntimeError(f"the plain loop failed:\n{self._job.tail()}")

    def turn(self) -> None:
        """Let it make one round."""
        with self._watch.turn(self.turns):
            next(self._lines)

    def stop(self) -> None:
        """End it."""
        self._job.stop(grace_s=0.0)


@dataclass
class _Training:
    """A training by the partitioned runtime; the plain loop, where it is given, has its turn right after this one."""

    threads: int
    plain: PlainLoop | None = None
    turns: list[Turn] = field(default_factory=list)
    due: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))


def one_device(measured: Measured, rounds: int, repeats: int) -> list[Figure]:
    """Throughput of ours over the plain loop's, and of two threads over one, medians of `rounds * repeats` rounds; each
    spread is that of the medians of `repeats` parts of them. On a machine of one core the second is left out."""
    ours, plain, double = _take_turns(measured, rounds * repeats + WARM_UP)
    figures = [
        Figure(
            name="one_device_throughput",
            unit="x plain",
            target=0.97,
            better="higher",
            about=f"a one-device plan, {len(ours)} rounds in turns with a plain loop",
            **parts([b.wall_s / a.wall_s for a, b in zip(ours, plain, strict=True)], repeats),
        ),
        Figure(
            name="one_device_cpu",
            unit="x plain",
            better="higher",
            about="the same in CPU seconds of the worker, all threads",
            **parts([b.cpu_s / a.cpu_s for a, b in zip(ours, plain, strict=True)], repeats),
        ),
        Figure(
            name="one_device_samples_per_s",
            unit="samples/s",
            better="higher",
            value=BATCH_SAMPLES / middle([turn.wall_s for turn in ours])["value"],
        ),
    ]
    if double:
        figures.append(
            Figure(
                name="two_threads",
                unit="x one thread",
                target=1.6 if measured.model == MODEL else None,  # a smaller one has less to divide
                better="higher",
                about=f"throughput of that plan on 2 cores, {len(double)} rounds in turns with the same on one",
                **parts([a.wall_s / b.wall_s for a, b in zip(ours, double, strict=True)], repeats),
            )
        )
    return figures


def parts(ratios: list[float], repeats: int) -> dict[str, Any]:
    """The median of all; smallest and largest median of the parts."""
    size = len(ratios) // repeats
    medians = [middle(ratios[start : start + size])["value"] for start in range(0, size * repeats, size)]
    return {"value": middle(ratios)["value"], "spread": middle(medians)["spread"]}


def _take_turns(measured: Measured, turns: int) -> tuple[list[Turn], list[Turn], list[Turn]]:
    """Turns of ours on one thread, of the plain loop, and of ours on two threads (none on a machine of one core)."""
    plain = PlainLoop(measured, turns + 3)
    one, two = _Training(ONE, plain), _Training(TWO)
    sides = [one, two] if len(os.sched_getaffinity(0)) >= TWO else [one]
    loaded = threading.Barrier(len(sides), action=one.due.release)
    try:
        with ThreadPoolExecutor(len(sides)) as pool:
            nexts = (*sides[1:], one)
            jobs = [
                pool.submit(_train, measured, side, after, loaded, turns + 3)
                for side, after in zip(sides, nexts, strict=True)
            ]
        for job in jobs:
            job.result()
    finally:
        plain.stop()
    counted = slice(WARM_UP, turns)  # the rounds after those write a checkpoint
    return one.turns[counted], plain.turns[counted], two.turns[counted]


def _train(measured: Measured, mine: _Training, after: _Training, loaded: threading.Barrier, rounds: int) -> None:
    """A training that runs while it is due; between two rounds the others are. All load and run their first round at
    once, so that none is stopped for long."""
    devices = tuple(replace(device, threads=mine.threads) for device in measured.fleet.devices)
    held = replace(measured, fleet=replace(measured.fleet, devices=devices))
    launcher = Recording()
    watches: list[Stopwatch] = []

    def committed(what: str, done: float, total: float, unit: str = "", detail: str = "") -> None:
        """Called between two rounds, also after the last."""
        if not watches:
            watches.append(Stopwatch(launcher.jobs[0].pid))
        turn = watches[0].stop()
        if turn is None:
            if mine.plain is not None:
                mine.plain.wait_loaded()
            loaded.wait()
        else:
            mine.turns.append(turn)
            if mine.plain is not None:
                mine.plain.turn()
            after.due.release()
        if done < total:
            mine.due.acquire()
        watches[0].go()

    try:
        held.train(held.plan("single"), rounds, f"threads-{mine.threads}", launcher, committed)
    finally:
        loaded.abort()  # whoever still waits ends, too
        after.due.release()


def _plain_job(measured: Measured, rounds: int) -> Job:
    weights = source_folder(measured.model)
    profile, data = measured.folder / "profile" / "model", measured.folder / "data" / "train"
    numbers = map(str, (BATCH_SAMPLES, MICRO_BATCH_SAMPLES, rounds))
    return ProcessLauncher().start(
        Command(
            module="benchmarks.parts.plain_loop",
            arguments=(str(weights), str(profile), str(data), *numbers),
            log=measured.folder / "plain.log",
        )
    )
