"""Trainings that lose a device, and plan anew."""

from pathlib import Path
from typing import Any

from fleetune.contracts.plan import Plan
from fleetune.contracts.training_request import TrainingRequest
from fleetune.launching import Launcher
from fleetune.monitoring import follow
from fleetune.monitoring.event_summary import EventSummary
from fleetune.planning.revision import Reviser
from fleetune.planning.strategy import Problem
from fleetune.training.commit_log import read_commits
from fleetune.training.faults import BACKWARD, KILL, Fault, FaultyLauncher
from tests.support.training.recording import Recording
from tests.support.training.runs import Prepared, run_plan, training_task

ROUNDS = 6
TRAINING = TrainingRequest(
    rounds=ROUNDS,
    batch_samples=24,
    micro_batch_samples=8,
    learning_rate=1e-3,
    schedule="cosine",
    checkpoint_every_rounds=3,
)


def losing(
    ready: Prepared, made: Plan, folder: Path, after: int, device: int, training: TrainingRequest = TRAINING
) -> EventSummary:
    """Train, and lose a device in its backward of round `after`, which is not committed then; return what happened."""
    launcher = Recording()
    fault = Fault(number=0, device=f"d{device}", kind=KILL, point=BACKWARD, round=after)
    return trained(ready, made, folder, training, launcher, FaultyLauncher(launcher, (fault,), folder / "marks"))


def trained(
    ready: Prepared,
    made: Plan,
    folder: Path,
    training: TrainingRequest,
    recording: Recording,
    launcher: Launcher,
    **changes: Any,
) -> EventSummary:
    """Train, planning anew after losses; return what happened. recording: the launcher that starts the processes."""
    task = training_task(ready, made, training, folder)
    reviser = Reviser(problem=Problem.of(task.plan, task.fleet, task.profile, ready.seed))
    metrics = run_plan(ready, made, training, folder, launcher=launcher, revise=reviser, **changes)
    assert [each.round for each in metrics.rounds] == list(range(ROUNDS)), "every round is committed once"
    assert [each.round for each in read_commits(folder / "work" / "commits.jsonl")] == list(range(ROUNDS))
    assert all(job.poll() is not None for job in recording.jobs), "no process is left"
    return follow(folder / "output" / "metrics" / "events.jsonl", lambda *_: None, alive=lambda: False)
