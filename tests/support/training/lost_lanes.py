"""Trainings of several lanes that lose a device."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from fleetune.contracts.metrics import TrainingMetrics
from fleetune.contracts.plan import Plan
from fleetune.contracts.training_request import TrainingRequest
from fleetune.planning.revision import Reviser
from fleetune.planning.strategy import Problem
from tests.support.training.lanes import sized
from tests.support.training.listeners import killing
from tests.support.training.recording import Recording
from tests.support.training.runs import Prepared, run_plan, training_task

ROUNDS = 6
TRAINING = TrainingRequest(
    rounds=ROUNDS, batch_samples=24, micro_batch_samples=8, learning_rate=1e-3, checkpoint_every_rounds=3
)
GREEDY = {"method": "balanced-greedy"}


def reviser_of(ready: Prepared, made: Plan, folder: Path, **options: Any) -> Reviser:
    """Return what plans for the devices that are left."""
    task = training_task(ready, made, TRAINING, folder)
    profile = sized(ready, task.profile)
    return Reviser(problem=Problem.of(replace(task.plan, options=options), task.fleet, profile, ready.seed))


def losing(
    ready: Prepared, made: Plan, folder: Path, device: str, after: int = 5, **changes: Any
) -> tuple[TrainingMetrics, list[str]]:
    """Train, and kill a device once so many rounds are committed, unless it dies by itself; return metrics and notes.

    The checkpoint of round 3 is there for certain after 5.
    """
    said, options = list[str](), GREEDY if made.strategy == "split-learning" else {}
    if "launcher" not in changes:
        launcher = Recording()
        changes |= {"launcher": launcher, "progress": killing(launcher, after, made.devices.index(device))}
    changes.setdefault("revise", reviser_of(ready, made, folder, **options))
    metrics = run_plan(ready, made, TRAINING, folder, note=said.append, **changes)
    assert [each.round for each in metrics.rounds] == list(range(ROUNDS)), "every round is committed once"
    assert all(job.poll() is not None for job in changes["launcher"].jobs), "no process is left"
    return metrics, said
