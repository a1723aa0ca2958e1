"""Lost devices come back: they are started again, and take part from the border of a round on."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from fleetune.contracts.plan import Plan
from fleetune.contracts.training_request import TrainingRequest
from fleetune.planning.revision import Reviser
from fleetune.planning.strategy import Problem
from fleetune.recovery import membership
from fleetune.training.faults import ALL_REDUCE, CUT, FORWARD, KILL, Fault, FaultyLauncher
from tests.support.training.control_comparison import difference, whole_model
from tests.support.training.ends import assert_same_end
from tests.support.training.lane_training import lane_models, train_federated
from tests.support.training.lanes import by_blocks, ready_for, split
from tests.support.training.listeners import killing, waiting_for
from tests.support.training.recording import Recording
from tests.support.training.runs import Prepared, final_state, plan, run_plan, training_task
from tests.support.training.unsplit_training import Control

ROUNDS = 30
"""Of a training in which a device comes back."""


@pytest.fixture(scope="module")
def ready(tmp_path_factory: pytest.TempPathFactory) -> Prepared:
    """A small BERT with dropout, in double precision."""
    return ready_for(tmp_path_factory.mktemp("bert"), precision="float64")


@pytest.fixture(scope="module")
def whole(ready: Prepared, tmp_path_factory: pytest.TempPathFactory) -> dict[str, torch.Tensor]:
    """The weights of a training on one device that nothing befalls."""
    folder = tmp_path_factory.mktemp("whole")
    run_plan(ready, plan(ready.units, [], [[8]]), training(ROUNDS), folder)
    return final_state(folder)


def training(rounds: int) -> TrainingRequest:
    """A training without checkpoints in between."""
    return TrainingRequest(
        rounds=rounds, batch_samples=24, micro_batch_samples=8, learning_rate=1e-3, checkpoint_every_rounds=rounds
    )


def reviser_of(ready: Prepared, task) -> Reviser:  # type: ignore[no-untyped-def]
    """Return what plans for the devices that are left."""
    return Reviser(problem=Problem.of(task.plan, task.fleet, task.profile, ready.seed))


def lose_one_of_two(ready: Prepared, made: Plan, folder: Path, back: str, spares: Sequence[str] = ()) -> list[str]:
    """Train with a group of two, of which d1 is killed after round 4; a sentence says that a device is back.

    Return how the training went on: without a round run again. Every round is committed once, and no process is left.
    """
    many, launcher, said = training(ROUNDS), Recording(), list[str]()
    task = training_task(ready, made, many, folder, spares=spares)
    metrics = run_plan(
        ready,
        made,
        many,
        folder,
        spares=spares,
        launcher=launcher,
        progress=waiting_for(said, back, killing(launcher, 4, 1)),
        revise=reviser_of(ready, task),
        returns=True,
        note=said.append,
    )
    assert [each.round for each in metrics.rounds] == list(range(ROUNDS)), "every round is committed once"
    assert len(launcher.jobs) == 3 and all(job.poll() is not None for job in launcher.jobs), "no process is left"
    goes_on = [each for each in said if each.startswith("goes on from")]
    assert not any("run again" in each or "read" in each for each in goes_on), said
    return goes_on


def test_a_killed_device_comes_back_and_trains_again(
    ready: Prepared, whole: dict[str, torch.Tensor], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of a group is killed: the other one goes on alone, and shares its samples with it again once it is back, from
    memory, without a round run again. The weights are those of a run without the loss."""
    monkeypatch.setattr(membership, "FIRST_S", 0.05)
    goes_on = lose_one_of_two(ready, plan(ready.units, [], [[4, 4]]), tmp_path, "device d1 is back")
    assert len(goes_on) == 2 and " on d0: " in goes_on[0] and " on d0, d1: " in goes_on[1], goes_on
    assert_same_end(whole, tmp_path)


def test_a_device_that_the_plan_left_out_joins_after_a_loss(
    ready: Prepared, whole: dict[str, torch.Tensor], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is started with the first loss, and has its share of the samples from the border of a round on, from memory;
    the lost one stays away. The weights are those of a run without the loss."""
    monkeypatch.setattr(membership, "FIRST_S", 1000.0)
    made = replace(plan(ready.units, [], [[4, 4]]), strategy="dp")
    goes_on = lose_one_of_two(ready, made, tmp_path, "device d2 may help", spares=["d2"])
    assert len(goes_on) == 2 and " on d0: " in goes_on[0] and " on d0, d2: " in goes_on[1], goes_on
    assert_same_end(whole, tmp_path)


def test_spares_are_profiled_and_may_be_used_and_own_no_samples(ready: Prepared, tmp_path: Path) -> None:
    """What a strategy was told to leave out is no spare, and lanes have none: their samples belong to devices."""
    made = plan(ready.units, [], [[4, 4]])
    changes = {"spares": ["d2", "d3"], "returns": True}
    task = training_task(ready, made, training(1), tmp_path, **changes)
    task = replace(task, revise=reviser_of(ready, task))
    assert task.spares == ("d2", "d3") and replace(task, returns=False).spares == ()
    some = replace(task.profile, times=task.profile.times[:3])
    assert replace(task, profile=some).spares == ("d2",)
    told = replace(task.plan, options={"devices": ["d0", "d1", "d3"]})
    assert replace(task, plan=told).spares == ("d3",)
    lanes = replace(task.plan, plan=by_blocks(ready, [2]))
    assert replace(task, plan=lanes).spares == ()


def test_a_link_to_a_device_that_has_come_back_breaks_as_any_other_one(
    ready: Prepared, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bug: a message to it that was to be lost went past the relay, at the new address, and the sender waited 20 s for
    its loss. A round whose message is lost is run again by the same plan."""
    monkeypatch.setattr(membership, "FIRST_S", 0.05)
    made, many, said = plan(ready.units, [], [[4, 4]]), training(ROUNDS), list[str]()
    faults = [
        Fault(number=0, device="d1", kind=KILL, point=FORWARD, round=2),
        Fault(number=1, device="d0", kind=CUT, point=ALL_REDUCE, round=ROUNDS - 5),
    ]
    task = training_task(ready, made, many, tmp_path)
    metrics = run_plan(
        ready,
        made,
        many,
        tmp_path,
        launcher=FaultyLauncher(Recording(), faults, tmp_path / "marks"),
        progress=waiting_for(said, "device d1 is back", lambda *_: None),
        revise=reviser_of(ready, task),
        returns=True,
        note=said.append,
    )
    assert [each.round for each in metrics.rounds] == list(range(ROUNDS)), "every round is committed once"
    goes_on = [each.split(":")[0] for each in said if each.startswith("goes on from")]
    assert len(goes_on) == 3 and goes_on[-1] == f"goes on from round {ROUNDS - 5} on d0, d1", said


def test_lola_deft_waits_for_a_device_that_comes_back(
    ready: Prepared, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The collector holds all state: a device that is back within the stated time goes on with its block and its
    samples, and all bits are those of a run without the loss."""
    monkeypatch.setattr(membership, "FIRST_S", 0.05)
    made, six = replace(by_blocks(ready, [2]), strategy="lola-deft"), training(6)
    run_plan(ready, made, six, tmp_path / "whole")
    launcher, said = Recording(), list[str]()
    progress = killing(launcher, 4, made.devices.index("d1"))
    reviser = reviser_of(ready, training_task(ready, made, six, tmp_path / "lost"))
    changes = {"launcher": launcher, "progress": progress, "revise": reviser, "returns": True, "note": said.append}
    run_plan(ready, made, six, tmp_path / "lost", **changes)
    assert "device d1 is back" in said and not any("left out" in each for each in said), said
    whole, found = final_state(tmp_path / "whole"), final_state(tmp_path / "lost")
    assert whole.keys() == found.keys() and all(torch.equal(whole[name], found[name]) for name in whole)


def test_a_client_comes_back_with_the_newest_average(
    ready: Prepared, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its lane begins again with what all lanes have right after an average, moments included, on its own samples; the
    others lose nothing but the round that was running."""
    monkeypatch.setattr(membership, "FIRST_S", 0.05)
    made, many = replace(split(ready, "xyz", every=3), strategy="split-learning"), training(ROUNDS)
    launcher, said = Recording(), list[str]()
    task = training_task(ready, made, many, tmp_path)
    options = {"method": "balanced-greedy"}
    problem = Problem.of(replace(task.plan, options=options), task.fleet, task.profile, ready.seed)
    metrics = run_plan(
        ready,
        made,
        many,
        tmp_path,
        launcher=launcher,
        progress=waiting_for(said, "device y is back", killing(launcher, 4, made.devices.index("y"))),
        revise=Reviser(problem=problem),
        returns=True,
        note=said.append,
    )
    out, back = [each for each in said if each.startswith("goes on from")]
    again = int(back.split()[4])
    assert out.startswith("goes on from round 4 ") and again % 3 == 0 and " x, h, y, z: " in back, said
    assert "run again" not in back and "read" not in back and not said[-1].endswith("weigh by their own"), said
    lanes = lane_models(ready, whole_model(ready), made)
    control = train_federated(lanes, many, lost={"y": range(4, again)})
    found = difference(ready, Control([r.loss for r in metrics.rounds], final_state(tmp_path)), control)
    assert max(found.loss, found.tensor, found.logits) < 1e-9, found
