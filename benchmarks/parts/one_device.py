"""A one-device plan beside a plain PyTorch loop: two processes that take turns, a round at a time."""

from dataclasses import dataclass, field
from typing import Any

from benchmarks.parts.bench_model import BATCH_SAMPLES, MICRO_BATCH_SAMPLES, Measured
from benchmarks.parts.turns import Stopwatch, Turn
from benchmarks.report import Figure, middle
from fleetune.contracts.plan import PlanResult
from fleetune.launching import Command, Job, ProcessLauncher
from fleetune.models.source import source_folder

WARM_UP = 2  # turns of both that are not counted


class Recording:
    """Remembers the jobs it started."""

    def __init__(self) -> None:
        self.jobs: list[Job] = []

    def start(self, command: Command) -> Job:
        """Start and remember."""
        self.jobs.append(ProcessLauncher().start(command))
        return self.jobs[-1]


@dataclass
class Taken:
    """Turns of both, in pairs."""

    ours: list[Turn] = field(default_factory=list)
    plain: list[Turn] = field(default_factory=list)


def one_device(measured: Measured, rounds: int, repeats: int) -> list[Figure]:
    """Throughput of ours over the plain loop's, median of all turns; the spread is that of `repeats` parts of them."""
    taken = _take_turns(measured, rounds * repeats + WARM_UP)
    walls = [plain.wall_s / ours.wall_s for ours, plain in zip(taken.ours, taken.plain, strict=True)]
    cpus = [plain.cpu_s / ours.cpu_s for ours, plain in zip(taken.ours, taken.plain, strict=True)]
    return [
        Figure(
            name="one_device_throughput",
            unit="x plain",
            target=0.97,
            better="higher",
            about=f"a one-device plan, {len(walls)} rounds in turns with a plain loop",
            **_parts(walls, repeats),
        ),
        Figure(
            name="one_device_cpu",
            unit="x plain",
            better="higher",
            about="the same in CPU seconds of the worker, all threads",
            **_parts(cpus, repeats),
        ),
        Figure(
            name="one_device_samples_per_s",
            unit="samples/s",
            better="higher",
            value=BATCH_SAMPLES / middle([turn.wall_s for turn in taken.ours])["value"],
        ),
    ]


def _parts(ratios: list[float], repeats: int) -> dict[str, Any]:
    """The median of all; smallest and largest median of the parts."""
    size = len(ratios) // repeats
    medians = [middle(ratios[start : start + size])["value"] for start in range(0, size * repeats, size)]
    return {"value": middle(ratios)["value"], "spread": middle(medians)["spread"]}


def _take_turns(measured: Measured, turns: int) -> Taken:
    plan = measured.plan("single")
    plain = _plain_job(measured, turns + 2)
    try:
        return _with_plain(measured, plan, plain, turns)
    finally:
        plain.stop(grace_s=0.0)


def _with_plain(measured: Measured, plan: PlanResult, plain: Job, turns: int) -> Taken:
    lines = plain.lines()
    other = Stopwatch(plain.pid)
    launcher = Recording()
    taken = Taken()
    watches: list[Stopwatch] = []

    def committed(what: str, done: float, total: float, unit: str = "") -> None:
        """Called between two rounds of ours, also after the last."""
        if not watches:
            watches.append(Stopwatch(launcher.jobs[0].pid))
        mine = watches[0].stop()
        if mine is None and next(lines, "") != "loaded":
            raise RuntimeError(f"the plain loop failed:\n{plain.tail()}")
        if done < total:
            with other.turn(taken.plain):
                next(lines)
        if mine is not None:
            taken.ours.append(mine)
        watches[0].go()

    measured.train(plan, turns + 2, "one-device", launcher, committed)
    count = min(len(taken.ours), len(taken.plain)) - 1  # the last round of ours writes a checkpoint
    return Taken(taken.ours[WARM_UP:count], taken.plain[WARM_UP:count])


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
