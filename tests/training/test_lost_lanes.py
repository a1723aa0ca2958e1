"""Trainings of several lanes that lose a device go on: without its samples if it owned some, else to equal weights."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from torch import nn

from fleetune.clock import Clock
from fleetune.contracts.plan import DeviceOrder, Lane, Plan, PlanResult, Share
from fleetune.planning.revision import around
from fleetune.training.measurements import busy_s
from fleetune.training.pace import ROUNDS as OBSERVED
from fleetune.training.revisions import Revisions
from tests.support.training.control_comparison import FP64, difference, whole_model
from tests.support.training.dying_worker import DyingLauncher
from tests.support.training.ends import assert_same_end
from tests.support.training.lane_training import LaneModel, lane_models, optimizer_of, train_federated
from tests.support.training.lanes import by_blocks, ready_for, split
from tests.support.training.local_data import own_data
from tests.support.training.lost_lanes import ROUNDS, TRAINING, losing, reviser_of
from tests.support.training.runs import Prepared, final_state, run_plan, training_task
from tests.support.training.unsplit_training import Control


@pytest.fixture(scope="module")
def ready(tmp_path_factory: pytest.TempPathFactory) -> Prepared:
    """A small BERT with dropout, in double precision."""
    return ready_for(tmp_path_factory.mktemp("bert"), precision="float64")


def learning(
    ready: Prepared, clients: str, helpers: Mapping[str, str], every: int = 3, rounds: dict[str, int] | None = None
) -> Plan:
    """Return a plan of split learning. helpers: client -> its helper, if that is not h. rounds: client -> its steps
    between averages, if not all."""
    made = replace(split(ready, clients, every=every, rounds=rounds), strategy="split-learning")
    lanes = []
    for lane in made.lanes:
        middle = replace(lane.segments[1], shares=(Share(device=helpers.get(lane.name, "h"), samples=8),))
        lanes.append(replace(lane, segments=(lane.segments[0], middle, lane.segments[2])))
    orders = [order for order in made.order if order.device != "h"]
    (middle_order,) = (order for order in made.order if order.device == "h")
    for helper in sorted({helpers.get(client, "h") for client in clients}):
        own = tuple(a for a in middle_order.actions if helpers.get(a.split("/")[0], "h") == helper)
        orders.append(DeviceOrder(device=helper, actions=own))
    return replace(made, lanes=tuple(lanes), order=tuple(orders))


def went_on_from(said: list[str]) -> int:
    """Return the round from which the others went on: a device that is killed may just have finished one more."""
    (told,) = [each for each in said if each.startswith("goes on from round ")]
    return int(told.split()[4])


@pytest.mark.parametrize(
    ("clients", "helpers", "rounds"),
    [("xyz", {"z": "g"}, {}), ("xy", {}, {}), ("xy", {}, {"y": 1})],
    ids=["another helper", "no helper", "no helper, and a client rests"],
)
def test_a_lost_helpers_clients_go_on_to_the_same_weights(
    clients: str, helpers: dict[str, str], rounds: dict[str, int], ready: Prepared, tmp_path: Path
) -> None:
    """Its clients' middle parts are read from the checkpoint, by another helper or by the clients themselves, and no
    client's batches change."""
    made = learning(ready, clients, helpers, rounds=rounds)
    run_plan(ready, made, TRAINING, tmp_path / "whole")
    _, said = losing(ready, made, tmp_path / "lost", helpers.get("z", "h"))
    assert_same_end(final_state(tmp_path / "whole"), tmp_path / "lost")
    assert went_on_from(said) == 3 and any("the checkpoint is read" in each for each in said), said
    assert not any("left out" in each for each in said), said


@pytest.mark.parametrize(("local", "rounds"), [(False, {}), (True, {}), (True, {"z": 1})], ids=str)
def test_a_lost_client_is_left_out_of_the_average(
    local: bool, rounds: dict[str, int], ready: Prepared, tmp_path: Path
) -> None:
    """The others keep their rows and seeds, run no round again, and weigh by their own samples; the note says how many
    samples are gone. The client that is lost stands between two others."""
    made = learning(ready, "xyz", {}, rounds=rounds)
    data = own_data(ready, tmp_path, {"x": 61, "y": 9, "z": 30}) if local else {}
    metrics, said = losing(ready, made, tmp_path, "y", after=4, local=data)
    lanes = lane_models(
        ready, whole_model(ready), made, [data[lane.name].folder for lane in made.lanes] if local else ()
    )
    control = train_federated(lanes, TRAINING, lost={"y": range(went_on_from(said), ROUNDS)})
    found = difference(ready, Control([r.loss for r in metrics.rounds], final_state(tmp_path)), control)
    assert max(found.loss, found.tensor, found.logits) < FP64, found
    counts = [61, 9, 30] if local else [len(lane.rows) for lane in lanes]
    gone = f"y is left out: {counts[1]} of {sum(counts)} training samples are not trained on any more"
    assert any(each.startswith(gone) for each in said), said
    assert went_on_from(said) >= 4 and not any("run again" in each for each in said), said


@pytest.mark.parametrize("local", [False, True], ids=["dealt", "own data"])
def test_an_interrupted_training_goes_on_without_a_client(local: bool, ready: Prepared, tmp_path: Path) -> None:
    """A plan without the client goes on from the checkpoint after 3 rounds: the other clients keep the rows and seeds
    that the first plan gave them, as if the client had been lost meanwhile."""
    made, left = learning(ready, "xyz", {}), learning(ready, "xz", {})
    data = own_data(ready, tmp_path, {"x": 61, "y": 9, "z": 30}) if local else {}
    run_plan(ready, made, replace(TRAINING, rounds=3), tmp_path / "first", local=data)
    others = {name: each for name, each in data.items() if name != "y"}
    earlier = (tmp_path / "first" / "work",)
    metrics = run_plan(ready, left, TRAINING, tmp_path / "second", local=others, earlier=earlier)
    folders = [data[lane.name].folder for lane in made.lanes] if local else ()
    lanes = lane_models(ready, whole_model(ready), made, folders)
    control = train_federated(lanes, TRAINING, lost={"y": range(3, ROUNDS)})
    state = final_state(tmp_path / "second")
    found = difference(ready, Control([r.loss for r in metrics.rounds], state), control)
    assert max(found.loss, found.tensor, found.logits) < FP64, found


def marked(folder: Path) -> Path:
    """Return what marks the checkpoint of round 3 as complete."""
    return folder / "work" / "checkpoints" / "round-000003" / "round.json"


def test_a_client_is_lost_in_the_middle_of_an_average(ready: Prepared, tmp_path: Path) -> None:
    """The average follows a round whose commit is logged: what the others hold is neither the old state nor the new
    one, so all read the checkpoint, and the round is run again without the client."""
    made = learning(ready, "xyz", {}, every=4)
    metrics, said = losing(ready, made, tmp_path, "y", launcher=DyingLauncher("y", "push-A", 3, marked(tmp_path)))
    lanes = lane_models(ready, whole_model(ready), made)
    control = train_federated(lanes, TRAINING, lost={"y": range(3, ROUNDS)})
    found = difference(ready, Control([r.loss for r in metrics.rounds], final_state(tmp_path)), control)
    assert max(found.loss, found.tensor, found.logits) < FP64, found
    assert any("goes on from round 3" in each and "the checkpoint is read" in each for each in said), said


def test_a_client_is_lost_in_the_average_after_the_last_round(ready: Prepared, tmp_path: Path) -> None:
    """Bug: the last state is asked for while it is being averaged. Where a loss broke that off, those that were to
    save it reported an error, and the training ended instead of going on without the client."""
    made = learning(ready, "xyz", {}, every=4)
    metrics, said = losing(
        ready, made, tmp_path, "y", launcher=DyingLauncher("y", "push-A", ROUNDS - 1, marked(tmp_path))
    )
    assert [each.round for each in metrics.rounds] == list(range(ROUNDS)), said
    assert any("goes on from round 3" in each and "the checkpoint is read" in each for each in said), said


@pytest.mark.parametrize(("lost", "left"), [("d1", {"block-0", "block-2"}), ("s", {"block-1", "block-2"})])
def test_blocks_of_a_lost_device_go_to_the_others(lost: str, left: set[str], ready: Prepared, tmp_path: Path) -> None:
    """LoLa-DEFT: the collector holds all state, so that no round is run again without another device; where it is lost
    itself, all read the checkpoint and a device collects instead. The model's blocks are joined anew, and the gradient
    of each comes from the batch of the device that has it then: all weights are the definition's."""
    made = replace(by_blocks(ready, [1, 3]), strategy="lola-deft")
    metrics, said = losing(ready, made, tmp_path, lost)
    after = reviser_of(ready, made, tmp_path)(made, [lost]).plan
    assert {lane.name for lane in after.lanes} == left
    again = went_on_from(said)
    lanes, whole = lane_models(ready, whole_model(ready), made), whole_model(ready)
    control = blocks_of(lanes, whole, [made.lanes] * again + [after.lanes] * (ROUNDS - again))
    found = difference(ready, Control([r.loss for r in metrics.rounds], final_state(tmp_path)), control)
    assert found.tensor == 0.0 and found.loss < FP64, found
    assert any("left out" in each for each in said), said
    assert (again == 3) == any("the checkpoint is read" in each for each in said) == (lost == "s"), said


@pytest.mark.parametrize(("kind", "slow"), [("clients", "h"), ("blocks", "d0")])
def test_lanes_are_planned_anew_around_a_straggler(kind: str, slow: str, ready: Prepared, tmp_path: Path) -> None:
    """A slow helper's clients go to another helper, and a slow device gets a block nearer the output, at the border of
    a round; every lane keeps its samples, and all weights are the definition's."""
    made = learning(ready, "xyz", {"z": "g"}) if kind == "clients" else by_blocks(ready, [2])
    made = replace(made, strategy="split-learning" if kind == "clients" else "lola-deft")
    training, said = replace(TRAINING, replan_stragglers=True), list[str]()
    reviser = reviser_of(ready, made, tmp_path)
    task = training_task(ready, made, training, tmp_path)
    forecast_s = busy_s(Clock(task.fleet, task.profile).forecast(made).rows)

    def measured(round: int, found: Mapping[str, float]) -> Mapping[str, float]:
        return {device: (3 if device == slow else 1) * seconds for device, seconds in forecast_s.items()}

    def around_stragglers(plan: Plan, lost: Collection[str], paces: Mapping[str, float], must: bool) -> PlanResult:
        return around(reviser.problem, plan, lost, paces, must=must)

    hooks = {"measured_busy": measured, "around_stragglers": around_stragglers, "revise": reviser}
    metrics = run_plan(ready, made, training, tmp_path, note=said.append, **hooks)
    assert metrics.revised_from_round == OBSERVED and not any("run again" in each for each in said), said
    after = around(reviser.problem, made, [], {slow: 3.0}).plan
    lanes, whole = lane_models(ready, whole_model(ready), made), whole_model(ready)
    if kind == "clients":
        control = train_federated(lanes, TRAINING)
    else:
        control = blocks_of(lanes, whole, [made.lanes] * OBSERVED + [after.lanes] * (ROUNDS - OBSERVED))
    found = difference(ready, Control([r.loss for r in metrics.rounds], final_state(tmp_path)), control)
    assert max(found.loss, found.tensor, found.logits) < FP64, found


@pytest.mark.parametrize("slow", ["x", "y"])
def test_a_client_that_returns_beside_a_straggler_has_its_lane_again(
    slow: str, ready: Prepared, tmp_path: Path
) -> None:
    """Bug: for a straggler nothing could be gained in the first plan, so that no plan took y back: its samples were not
    trained on any more, without a word. The straggler is another client, or y itself."""
    made = learning(ready, "xyz", {})
    reviser = reviser_of(ready, made, tmp_path)

    def around_stragglers(plan: Plan, lost: Collection[str], paces: Mapping[str, float], must: bool) -> PlanResult:
        return around(reviser.problem, plan, lost, paces, must=must)

    task = training_task(ready, made, TRAINING, tmp_path, revise=reviser, around_stragglers=around_stragglers)
    revisions, others = Revisions(task), [name for name in made.devices if name != "y"]

    def lanes(living: Sequence[str]) -> list[str]:
        layout = revisions.revise(living, {slow: 2.0} if slow in living else {})
        return [lane.name for lane in revisions.result(layout.revision).plan.lanes]

    assert lanes(others) == ["x", "z"]
    assert lanes(made.devices) == ["x", "y", "z"]


def blocks_of(lanes: Sequence[LaneModel], whole: nn.Module, dealt: Sequence[Sequence[Lane]]) -> Control:
    """LoLa-DEFT's rounds, with the lanes of each."""
    optimizer = optimizer_of(whole, TRAINING)
    first, control = [lane.name for lane in dealt[0]], Control()
    for round, those in enumerate(dealt):
        losses, sizes = [], []
        for each in those:
            lane = lanes[first.index(each.name)]
            lane.model.load_state_dict(whole.state_dict())
            lane.model.zero_grad()
            losses.append(lane.backward(round))
            sizes.append(len(lane.rows))
            own = dict(lane.model.named_parameters())
            for name, parameter in whole.named_parameters():
                if name.startswith(tuple(f"{unit}." for unit in each.segments[0].trains)):
                    parameter.grad = own[name].grad
        optimizer.step()
        optimizer.zero_grad()
        control.losses.append(sum(loss * size / sum(sizes) for loss, size in zip(losses, sizes, strict=True)))
    control.state = {k: v.detach().clone() for k, v in whole.state_dict().items()}
    return control
