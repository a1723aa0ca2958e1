"""A small training of four processes that loses one of them: what its rounds enter, and what the recovery does."""

import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import chain, pairwise
from pathlib import Path
from typing import TypeVar

from benchmarks.recovery.workload import SEED, prepare_workload
from benchmarks.weight.trace import Entry, Trace, TracingLauncher, Walk, together, worker_entries
from fleetune.launching import LocalSites
from fleetune.training.coordinator import train
from fleetune.training.faults import FORWARD, KILL, Fault, FaultyLauncher
from stages.reviser import replanning

T = TypeVar("T")
STEADY = slice(1, 6)
"""Commits between which rounds count: from the second, and up to that of the round before the backup."""
BACKUP_ROUNDS, KILLED_IN = 6, 8


@dataclass(frozen=True)
class Walks:
    """What the processes of a training enter from the time at which a commit is logged to the next one."""

    worker: Walk
    """In a steady round, of the worker that enters the most files."""
    coordinator: Walk
    recovery: Walk
    """Of the coordinator and the workers that are left, from the last commit before a device's kill to the first one
    after it."""

    @property
    def round(self) -> Walk:
        """A steady round in both processes."""
        return together((self.worker, self.coordinator))


def training_walks(folder: Path) -> Walks:
    """Train in processes and trace them; folder: an empty one."""
    workload = prepare_workload(folder / "walks")
    devices = tuple(replace(device, emulated=False) for device in workload.problem.fleet.devices)  # at full speed
    fleet = replace(workload.problem.fleet, devices=devices)
    workload = replace(workload, problem=replace(workload.problem, fleet=fleet))
    made = workload.plan()
    plan = replace(made, plan=replace(made.plan, links=(), backup_every_rounds=BACKUP_ROUNDS))
    alone = plan.plan.lanes[0].segments[plan.plan.backups[-1].segment].devices[0]  # the others go back to its backup
    fault = Fault(number=0, device=alone, kind=KILL, point=FORWARD, round=KILLED_IN)
    commits: list[tuple[int, float]] = []
    task = workload.task(
        plan,
        KILLED_IN + 1,
        "traced",
        sites=LocalSites(FaultyLauncher(TracingLauncher(), [fault], folder / "marks")),
        logged=lambda round: commits.append((round, time.monotonic())),
        **replanning(plan, fleet, workload.problem.profile, SEED),
    )
    with Trace() as trace:
        train(task)
    coordinator = trace.entries
    workers = [entries for each in (task.work / "workers").iterdir() if (entries := worker_entries(each))]
    times_s = [at_s for _, at_s in commits]
    at = next(k for k, ((before, _), (after, _)) in enumerate(pairwise(commits)) if after <= before)
    return Walks(
        max((_steady(entries, times_s[STEADY]) for entries in workers), key=lambda walk: len(walk.files)),
        _steady(coordinator, times_s[STEADY]),
        together(Walk.of(entries, times_s[at], times_s[at + 1]) for entries in (coordinator, *workers)),
    )


def _steady(entries: Sequence[Entry], times_s: Sequence[float]) -> Walk:
    """Return the walk of a round: what more than one round enters, with the moves of the one that waits the least.

    Beats come a few times a second, and not in every round; what comes once, such as a device that is asked whether it
    lives, belongs to no round.
    """
    walks = [Walk.of(entries, from_s, to_s) for from_s, to_s in pairwise(times_s)]
    return Walk(
        _repeated(walk.files for walk in walks),
        _repeated(walk.functions for walk in walks),
        min(walk.moves for walk in walks),
    )


def _repeated(sets: Iterable[frozenset[T]]) -> frozenset[T]:
    return frozenset(each for each, times in Counter(chain.from_iterable(sets)).items() if times > 1)
