"""A training that loses devices goes on with those that are left, and ends as the one that lost none."""

import json
import os
import signal
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median

import pytest
import torch

from fleetune.clock import Clock
from fleetune.contracts import json_io
from fleetune.contracts.metrics import TrainingMetrics
from fleetune.contracts.plan import Backup, Plan, PlanResult
from fleetune.errors import TryAgain
from fleetune.monitoring import follow
from fleetune.monitoring.event_summary import EventSummary
from fleetune.planning.revision import Reviser, around
from fleetune.planning.strategy import Problem
from fleetune.training.measurements import busy_s
from fleetune.training.pace import ROUNDS as OBSERVED
from tests.support.training.ends import assert_same_end
from tests.support.training.listeners import killing
from tests.support.training.lost_devices import ROUNDS, TRAINING, losing, trained
from tests.support.training.recording import Recording
from tests.support.training.runs import Prepared, final_state, plan, run_plan, training_task


@pytest.fixture(scope="module")
def ready(bert: Prepared) -> Prepared:
    """A small BERT with dropout."""
    return bert


@pytest.fixture(scope="module")
def whole(ready: Prepared, tmp_path_factory: pytest.TempPathFactory) -> dict[str, torch.Tensor]:
    """The weights of a training on one device that nothing happens to."""
    folder = tmp_path_factory.mktemp("whole")
    run_plan(ready, plan(ready.units, [], [[8]]), TRAINING, folder)
    return final_state(folder)


def told(found: EventSummary) -> list[str]:
    """Return how the training went on, without times."""
    return [each.split(" s: ", 1)[1] for each in found.recoveries]


@pytest.mark.parametrize(
    ("shape", "killed", "again"),
    [
        (([], [[4, 4]]), 0, "goes on from round 4 on d1: 0"),
        (([3], [[3, 5], [8]]), 1, "goes on from round 4 on d0, d2: "),
        (([3], [[8], [8]]), 1, "goes on from round 3 on d0: the checkpoint is read, 1 round run again"),
    ],
    ids=["whole group", "one of a group", "the only holder"],
)
def test_a_killed_device_costs_no_round_that_others_hold(
    shape: tuple[list[int], list[list[int]]],
    killed: int,
    again: str,
    ready: Prepared,
    whole: dict[str, torch.Tensor],
    tmp_path: Path,
) -> None:
    """A group's other members hold what the lost one held: its round is run again at once. What it alone held is read
    from the newest checkpoint, by all devices, in the same processes. The metrics keep the plan without it.
    """
    found = losing(ready, plan(ready.units, *shape), tmp_path, 4, killed)
    assert [each.split(" after ")[0] for each in found.failures] == [f"device d{killed} was lost"]
    metrics = json_io.read(TrainingMetrics, tmp_path / "output" / "metrics" / "training.json")
    from_round = metrics.revised_from_round
    assert from_round == int(again.split()[4]), "forecasts are not compared with rounds of another plan"
    assert metrics.median_round_s == median(each.round_s for each in metrics.rounds[:from_round])
    assert told(found)[-1].startswith(again), told(found)
    plans = json.loads((tmp_path / "output" / "metrics" / "plans.json").read_text())
    trained = [share["device"] for lane in plans[-1]["lanes"] for part in lane["segments"] for share in part["shares"]]
    assert set(trained) == set(again.split(":")[0].rpartition(" on ")[2].split(", "))
    assert_same_end(whole, tmp_path)


@pytest.mark.parametrize("every", [1, 2])
@pytest.mark.parametrize("killed", [0, 1], ids=["first", "last"])
def test_what_only_the_lost_device_held_is_in_its_backup(
    every: int, killed: int, ready: Prepared, whole: dict[str, torch.Tensor], tmp_path: Path
) -> None:
    """All devices go back to the version of the newest whole backup: there is no checkpoint that they could read."""
    backups = (Backup(lane="main", segment=0, holder="d1"), Backup(lane="main", segment=1, holder="d0"))
    made = replace(plan(ready.units, [3], [[8], [8]]), backup_every_rounds=every, backups=backups)
    seldom = replace(TRAINING, checkpoint_every_rounds=ROUNDS)
    found = losing(ready, made, tmp_path, 4, killed, training=seldom)
    said = told(found)[-1]
    assert " read" not in said.replace("run again", "") and f" on d{1 - killed}: " in said, said
    assert int(said.split()[4]) <= 4, said
    assert_same_end(whole, tmp_path)


def test_what_moves_away_may_stay_as_a_backup(ready: Prepared, whole: dict[str, torch.Tensor], tmp_path: Path) -> None:
    """Bug: the device that gives units to its neighbour, and is to hold their backup, had freed them before."""
    backups = (Backup(lane="main", segment=0, holder="d1"), Backup(lane="main", segment=1, holder="d2"))
    made = replace(plan(ready.units, [1, 2], [[8], [8], [4, 4]]), backup_every_rounds=1, backups=backups)
    found = losing(ready, made, tmp_path, 4, 3, training=replace(TRAINING, checkpoint_every_rounds=ROUNDS))
    assert len(found.failures) == 1 and " moved" in told(found)[-1]
    assert_same_end(whole, tmp_path)


@pytest.mark.parametrize("devices", [(0, 1), (1, 2)], ids=["a group", "holder and neighbour"])
def test_two_devices_at_once(
    devices: Sequence[int], ready: Prepared, whole: dict[str, torch.Tensor], tmp_path: Path
) -> None:
    """The one device that is left takes the whole model."""
    launcher, made = Recording(), plan(ready.units, [3], [[3, 5], [8]])
    progress = killing(launcher, 4, *devices)
    found = trained(ready, made, tmp_path, TRAINING, launcher, launcher, progress=progress)
    assert len(found.failures) == 2
    assert_same_end(whole, tmp_path)


def test_a_second_device_is_lost_during_the_recovery(
    ready: Prepared, whole: dict[str, torch.Tensor], tmp_path: Path
) -> None:
    """Whatever is lost meanwhile begins the recovery again."""
    launcher, task = Recording(), training_task(ready, plan(ready.units, [2, 4], [[8], [8], [8]]), TRAINING, tmp_path)
    reviser = Reviser(problem=Problem.of(task.plan, task.fleet, task.profile, ready.seed))

    def revise(made: Plan, lost: Sequence[str]):  # type: ignore[no-untyped-def]
        if launcher.jobs[1].poll() is None:
            os.kill(launcher.jobs[1].pid, signal.SIGKILL)
        return reviser(made, lost)

    run_plan(
        ready,
        task.plan.plan,
        TRAINING,
        tmp_path,
        launcher=launcher,
        progress=killing(launcher, 4, 2),
        revise=revise,
    )
    assert all(job.poll() is not None for job in launcher.jobs)
    assert_same_end(whole, tmp_path)


def test_without_a_plan_for_the_rest_the_training_ends_and_can_be_run_again(ready: Prepared, tmp_path: Path) -> None:
    """The error names the loss first, then why the others cannot go on; the newest checkpoint is kept."""
    launcher, made = Recording(), plan(ready.units, [3], [[8], [8]])
    task = training_task(ready, made, TRAINING, tmp_path)
    small = tuple(replace(device, memory_bytes=1 << 30) for device in task.fleet.devices)
    problem = Problem.of(task.plan, replace(task.fleet, devices=small), task.profile, ready.seed)
    with pytest.raises(TryAgain, match=r"^device d1 killed by signal 9 .* the devices that are left cannot go on: .*"):
        progress = killing(launcher, 5, 1)
        run_plan(ready, made, TRAINING, tmp_path, launcher=launcher, progress=progress, revise=Reviser(problem=problem))
    assert run_plan(ready, made, TRAINING, tmp_path).resumed_from_round == 3


@pytest.mark.parametrize("asked", [True, False])
def test_a_straggler_is_reported_and_replanned_around_only_if_the_run_says_so(
    asked: bool, ready: Prepared, whole: dict[str, torch.Tensor], tmp_path: Path
) -> None:
    """At the border of a round, with no round run twice: d1 is three times as slow as its profile, d0 as fast."""
    training = replace(TRAINING, replan_stragglers=asked)
    made = plan(ready.units, [2], [[8], [8]])
    task = training_task(ready, made, training, tmp_path)
    problem, clock = Problem.of(task.plan, task.fleet, task.profile, ready.seed), Clock(task.fleet, task.profile)

    def measured(round: int, found: Mapping[str, float]) -> Mapping[str, float]:
        forecast_s = busy_s(clock.forecast(made).rows)
        return {"d0": forecast_s["d0"], "d1": 3 * forecast_s["d1"]}

    def around_stragglers(plan: Plan, lost: Collection[str], paces: Mapping[str, float], must: bool) -> PlanResult:
        return around(problem, plan, lost, paces, must=must)

    hooks = {"measured_busy": measured, "around_stragglers": around_stragglers, "revise": Reviser(problem=problem)}
    metrics = run_plan(ready, made, training, tmp_path, **hooks)
    found = follow(tmp_path / "output" / "metrics" / "events.jsonl", lambda *_: None, alive=lambda: False)
    slow = [each for each in told(found) if each.startswith("device d1 is slow: it computes 3.0 times as long")]
    assert len(slow) == 1 and found.failures == ()
    assert metrics.revised_from_round == (OBSERVED if asked else None)
    assert [each.round for each in metrics.rounds] == list(range(ROUNDS)), "every round is committed once"
    assert_same_end(whole, tmp_path)


def test_what_plans_anew_is_loaded_before_a_device_is_lost(ready: Prepared, tmp_path: Path) -> None:
    """Importing planners takes as long as a round: all devices would wait for it at the first loss."""
    launcher, order = Recording(), list[str]()
    made = plan(ready.units, [], [[4, 4]])
    task = training_task(ready, made, TRAINING, tmp_path)
    reviser = Reviser(problem=Problem.of(task.plan, task.fleet, task.profile, ready.seed))

    def revise(lost_of: Plan, lost: Collection[str]) -> PlanResult:
        order.append("revised")
        return reviser(lost_of, lost)

    def load() -> None:
        order.append("loaded")

    progress = killing(launcher, 4, 0)
    run_plan(ready, made, TRAINING, tmp_path, launcher=launcher, progress=progress, revise=revise, load_planners=load)
    assert order == ["loaded", "revised"]


def test_one_device_has_nobody_to_plan_for(ready: Prepared, tmp_path: Path) -> None:
    """Nothing is loaded for a training that no other device could go on with."""
    loaded = list[str]()
    made, once = plan(ready.units, [], [[8]]), replace(TRAINING, rounds=1)
    run_plan(ready, made, once, tmp_path, load_planners=lambda: loaded.append("loaded"))
    assert not loaded
