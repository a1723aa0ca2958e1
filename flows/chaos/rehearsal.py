"""Trains a run's plan once as it is and once with faults, and tells whether the second ended as the first."""

import dataclasses
import math
import shutil
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import field
from pathlib import Path
from statistics import median

import psutil

from fleetune.contracts import json_io
from fleetune.contracts.fleet import PROCESS, Fleet
from fleetune.contracts.plan import PlanResult
from fleetune.contracts.profile import Profile
from fleetune.contracts.record import positive, record
from fleetune.contracts.run_config import RunConfig
from fleetune.contracts.task import StageTask
from fleetune.errors import FleetuneError, Infeasible, Refused
from fleetune.store import RunRecord
from fleetune.store.runs import REHEARSAL
from fleetune.training.faults import Mark, happened
from flows import api, attempt
from flows.chaos.comparison import Check, Trained, compare
from flows.chaos.places import Places
from flows.chaos.schedule import BORDER_ROUNDS, Schedule, check_room, draw
from flows.chaos.throughput import (
    Interval,
    Throughput,
    exact_rounds,
    intervals,
    lost_by_fault,
    never_undisturbed,
    throughput,
)
from flows.chaos.training import MARKS, SCHEDULE
from flows.context import RunContext, StageSelection
from flows.tracking import StageEvent
from stages.catalog import STAGES, StageSpec, config_slice, find_stage
from stages.reviser import reviser

CHAOS, CPU = "chaos", "cpu"
PACE, WHOLE, MET, ROUNDING = "pace", "whole", "faults", "rounding"
"""The trainings: a short one, without faults, with them, and without them by a plan that adds in another order."""
PACE_ROUNDS, WARM_ROUNDS = 20, 3
"""Of a short training, and those of them that are not yet as long as the others."""
END_S = 5.0


@record
class ChaosRequest:
    """What is asked for."""

    faults: int
    seed: int
    minutes: float | None = None
    """Length of each training, by the pace of a short one, but no less than a round for each fault; None: the rounds
    are those of the config."""


@record
class FaultRow:
    """A fault, and where it happened."""

    number: int
    device: str
    kind: str
    asked: str
    """The point and round that were drawn."""
    happened: str
    """The point and round at which it happened; empty if it did not."""
    lost_s: float | None = None
    """Seconds that the rounds from it to the next fault took longer; None if it did not happen."""


@record
class ChaosReport:
    """What came of a rehearsal."""

    run: str
    seed: int
    rounds: int
    """Of each training."""
    faults: tuple[FaultRow, ...]
    checks: tuple[Check, ...]
    starts: int
    """Starts of the training with faults: it is started again where the coordinator or the training ended."""
    whole_s: float
    met_s: float
    throughput: Throughput | None
    """With faults; None if the training without them was too short to compare with."""
    folder: str
    """With both trainings, where something does not hold; empty: removed."""

    @property
    def ok(self) -> bool:
        """True if everything holds."""
        return all(check.ok for check in self.checks)


def rehearse(
    context: RunContext, config: RunConfig, request: ChaosRequest, run_with: api.RunWith = api.run_with
) -> ChaosReport:
    """Run the pipeline until it has a plan, train twice and compare; Refused for what faults cannot befall.

    run_with: runs the pipeline.
    """
    _check(config)
    rounds = config.training.rounds
    if request.minutes is not None:
        positive("chaos", minutes=request.minutes)
        rounds = request.faults + BORDER_ROUNDS
    check_room(len(config.fleet.devices), rounds, request.faults)  # before anything is measured
    made = run_with(context, config, StageSelection(until="plan", beside=REHEARSAL))
    return Rehearsal(context, made).report(request)


def _check(config: RunConfig) -> None:
    elsewhere = [device.name for device in config.fleet.devices if device.launcher != PROCESS]
    if config.fleet.simulated or elsewhere:
        names = ", ".join(config.fleet.simulated or elsewhere)
        raise Refused(
            f"chaos: {names} are no processes of this machine, and faults befall processes; take such a fleet"
        )
    if config.data.local:
        raise Refused(
            "chaos: data.local is given; samples of a lost device are lost with it, so nothing can be compared"
        )


@dataclasses.dataclass
class Rehearsal:
    """The trainings of one rehearsal."""

    context: RunContext
    made: RunRecord
    """Of the run that has made the plan."""
    starts: dict[str, int] = field(default_factory=dict, init=False)
    """Training -> how often it was started."""

    def report(self, request: ChaosRequest) -> ChaosReport:
        """Train, compare, and remove what was made unless something does not hold."""
        plan = self._plan().plan
        if lossy := [f"{use.source}>{use.target}" for use in plan.links if not use.is_neutral and use.share == 1.0]:
            raise Refused(
                f"chaos: messages on {', '.join(lossy)} lose something, and those of another plan lose something else, "
                "so that weights cannot be compared; take a plan that sends every element"
            )
        shutil.rmtree(self._folder, ignore_errors=True)
        rounds = self._rounds(request)
        schedule = draw(Places.of(plan, self.made.config.training), rounds, request.faults, request.seed)
        began_s = time.monotonic()
        whole = self._train(WHOLE, Schedule(), rounds)
        ended_s = time.monotonic()
        met = self._train(MET, schedule, rounds)
        met_s = time.monotonic() - ended_s
        marks = {number: happened(self._folder / MET / MARKS, number) for number in range(schedule.count)}
        struck = {number: mark.round for number, mark in marks.items() if mark}
        alone = tuple(intervals(whole.events, plan.devices))
        faulty = tuple(intervals(met.events, plan.devices, set(struck.values())))
        others = tuple(self._trained_alone(never_undisturbed(alone, faulty)))
        rows = tuple(_rows(schedule, marks, lost_by_fault(alone, faulty, struck, others)))
        missed = [str(row.number) for row in rows if not row.happened]
        checks = (
            Check(name="all faults happened", ok=not missed, found=_missed(missed, len(rows))),
            *compare(whole, met, self._exact_rounds(met), lambda: self._rounding(rounds)),
            self._left_behind(),
        )
        report = ChaosReport(
            run=self.made.id,
            seed=request.seed,
            rounds=rounds,
            faults=rows,
            checks=checks,
            starts=self.starts[MET],
            whole_s=ended_s - began_s,
            met_s=met_s,
            throughput=throughput(alone, faulty, len(schedule.devices), others),
            folder=str(self._folder),
        )
        if not report.ok:
            return report
        shutil.rmtree(self._folder, ignore_errors=True)
        return dataclasses.replace(report, folder="")

    @property
    def _folder(self) -> Path:
        return self.context.store.local.resolve() / CHAOS / self.made.id

    def _input(self, kind: str) -> Path:
        return self.context.store.folder(kind, self.made.outputs[kind]).resolve()

    def _plan(self) -> PlanResult:
        return json_io.read(PlanResult, self._input("plan") / "plan.json")

    def _fleet(self) -> Fleet:
        return json_io.read(Fleet, self._input("fleet") / "fleet.json")

    def _rounds(self, request: ChaosRequest) -> int:
        def train_shortly() -> float:
            trained = self._train(PACE, Schedule(), PACE_ROUNDS)
            round_s = pace_s(intervals(trained.events, self._plan().plan.devices))
            self._tell(PACE, "note", f"{round_s:.3g} s a round")
            return round_s

        return rounds_for(request, self.made.config.training.rounds, train_shortly)

    def _train(self, name: str, schedule: Schedule, rounds: int, plan: Path | None = None) -> Trained:
        """Train to the end; start again as often as a fault has ended the training."""
        spec = dataclasses.replace(find_stage(STAGES, "train"), name=name, module="flows.chaos.training")
        work, config = self._folder / name, self.made.config
        config = dataclasses.replace(config, training=dataclasses.replace(config.training, rounds=rounds))
        task = StageTask(
            stage="train",
            run=self.made.id,
            seed=self.made.seed,
            config=config_slice(spec, json_io.dump(config)),
            inputs={kind: str(plan if kind == "plan" and plan else self._input(kind)) for kind in spec.inputs},
            output=str(work / attempt.OUTPUT),
            work=str(work),
        )
        json_io.write(schedule, work / SCHEDULE)
        began_s = time.monotonic()
        self._tell(name, "started", f"{schedule.count} faults" if schedule.count else "without faults")
        while not self._ended(spec, task, work / MARKS):
            pass
        started = self.starts[name]
        took_s = time.monotonic() - began_s
        self._tell(name, "done", f"{started} start{'' if started == 1 else 's'}", took_s)
        return Trained(Path(task.output))

    def _ended(self, spec: StageSpec, task: StageTask, marks: Path) -> bool:
        """Start the training; return whether it came to its end. An error that no new fault explains is raised."""
        before = len(list(marks.glob("*.json")))
        self.starts[spec.name] = self.starts.get(spec.name, 0) + 1
        job = attempt.start(spec, task, self.context.launcher, lambda: False)
        try:
            attempt.listen_to_end(spec, job, self.context.listen, lambda text: None)
        except FleetuneError as error:
            if len(list(marks.glob("*.json"))) == before:
                raise
            self._tell(spec.name, "note", f"starts again: {error}")
            return False
        finally:
            job.stop(END_S)
        return True

    def _tell(self, name: str, kind: str, text: str, seconds: float = 0.0) -> None:
        self.context.listen(StageEvent(stage=name, kind=kind, text=text, seconds=seconds))

    def _exact_rounds(self, met: Trained) -> int:
        """Return how many rounds must be those of the training without faults bit for bit: on CPUs, by its plan."""
        plan, fleet = self._plan().plan, self._fleet()
        if any(fleet.device(name).accelerator != CPU for name in plan.devices):
            return 0
        return exact_rounds(met.events, plan.devices, len(met.metrics.rounds))

    def _rounding(self, rounds: int) -> Trained | None:
        """Train by a plan for fewer devices; None if there is none that trains the same."""
        used = self._plan().plan.devices
        if len(self._plan().plan.lanes) > 1:
            return None
        for lost in (used[:1], *([name for name in used if name != left] for left in used)):
            other = self._plan_for([name for name in used if name not in lost])
            if other is not None:
                return self._train(ROUNDING, Schedule(), rounds, self._kept(other, "another-plan"))
        return None

    def _trained_alone(self, groups: Iterable[tuple[str, ...]]) -> Iterator[Interval]:
        """Yield the times between the commits of short trainings, each by the plan for some of the devices."""
        for number, devices in enumerate(groups):
            first = self._plan()
            other = first if first.plan.devices == devices else self._plan_for(devices)
            if other is None or set(other.plan.devices) != set(devices):
                continue
            name, plan = f"devices-{number}", self._kept(other, f"plan-{number}")
            try:
                trained = self._train(name, Schedule(), PACE_ROUNDS, plan)
            except FleetuneError as error:  # what was measured before is told without it
                self._tell(name, "note", str(error))
                continue
            yield from list(intervals(trained.events, devices))[WARM_ROUNDS:]

    def _plan_for(self, devices: Collection[str]) -> PlanResult | None:
        """Return the plan that a training goes on by when these devices are left; None if there is none."""
        plan, fleet = self._plan(), self._fleet()
        revise = reviser(plan, fleet, json_io.read(Profile, self._input("profile") / "profile.json"), self.made.seed)
        try:
            return revise(plan.plan, [device.name for device in fleet.devices if device.name not in devices])
        except (Infeasible, Refused):
            return None

    def _kept(self, result: PlanResult, name: str) -> Path:
        """Return a folder like that of the run's plan, with another plan in it."""
        folder = self._folder / name
        shutil.copytree(self._input("plan"), folder, dirs_exist_ok=True, copy_function=shutil.copyfile)
        json_io.write(result, folder / "plan.json")
        return folder

    def _left_behind(self) -> Check:
        """Look for processes that have a folder of this rehearsal on their command line."""
        found = [
            str(each.pid)
            for each in psutil.process_iter()
            if named(each, str(self._folder)) and each.pid != psutil.Process().pid
        ]
        return Check(name="no process is left", ok=not found, found=", ".join(found) or "none")


def pace_s(trained: Iterable[Interval]) -> float:
    """Return the seconds of a round by those of a training."""
    return median(each.seconds for each in trained)


def rounds_for(request: ChaosRequest, rounds: int, round_s: Callable[[], float]) -> int:
    """Return the rounds of each training: `rounds`, those of the config, or as many as fill the minutes asked for.

    round_s: measures the seconds of a round.
    """
    if request.minutes is None:
        return rounds
    return max(math.ceil(request.minutes * 60 / round_s()), request.faults + BORDER_ROUNDS)


def _rows(schedule: Schedule, marks: Mapping[int, Mark | None], lost_s: Mapping[int, float]) -> Iterator[FaultRow]:
    """Yield all faults in the order of their rounds. marks: where each happened; lost_s: what it has cost."""
    asked = {each.number: (each.device, each.kind, f"{each.point}, round {each.round}") for each in schedule.devices}
    asked |= {
        each.number: ("coordinator", "kill", f"commit logged, round {each.round}") for each in schedule.coordinator
    }
    for number, (device, kind, when) in sorted(asked.items()):
        mark = marks[number]
        where = f"{mark.point}, round {mark.round}" if mark is not None else ""
        lost = lost_s.get(number)
        yield FaultRow(number=number, device=device, kind=kind, asked=when, happened=where, lost_s=lost)


def named(process: psutil.Process, text: str) -> bool:
    """Return whether a process has a text on its command line; False once it has ended."""
    try:
        return any(text in word for word in process.cmdline())
    except psutil.Error:
        return False


def _missed(missed: list[str], count: int) -> str:
    return f"{count - len(missed)} of {count}" + (f"; not number {', '.join(missed)}" if missed else "")
