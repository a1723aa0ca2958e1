"""A run that is not done keeps what it measured, and work that has to be planned anew goes on from what is done."""

from dataclasses import replace
from pathlib import Path

import pytest

from fleetune.contracts.run_config import RunConfig
from fleetune.errors import TryAgain
from fleetune.store import RunRecord
from flows.context import StageSelection
from flows.preflight import predict_run
from flows.runner import Runner, run_without_prefect
from tests.flows.toy_pipeline import World, toy_context


def conducted(root: Path, config: RunConfig, **selection: str) -> RunRecord:
    """One run of the toy catalogue."""
    return run_without_prefect(Runner(toy_context(root), config, StageSelection(**selection)))


def unfinished(world: World, root: Path, value: str = "100") -> RunRecord:
    """A run that ended in the middle of `learn`, half of which is done."""
    world.set("value", value)
    world.set("goes-on", "")
    world.set("fail-learn", "75")
    with pytest.raises(TryAgain):
        conducted(root, world.config())
    world.clear("fail-learn")
    world.started()
    return toy_context(root).store.runs.load("latest")


def test_an_unfinished_run_keeps_what_it_measured(world: World, root: Path) -> None:
    """Bug: on a busy machine the same command measured another fleet, planned anew and trained from the start."""
    first = unfinished(world, root)
    world.set("value", "150")
    again = conducted(root, world.config())
    assert again.stage("measure").why == f"ran: measured in every run; the unfinished run {first.id} keeps its value"
    assert again.outputs["value"] == first.outputs["value"]
    assert world.started() == ["learn", "score"]
    assert again.stage("learn").why == f"ran: {first.id} did not finish it; goes on from the half"


def test_what_it_measured_is_kept_though_another_run_measured_since(world: World, root: Path) -> None:
    """The newest measurement of the same key is that of a run of other settings; the dry run says so too."""
    first = unfinished(world, root)
    world.set("value", "150")
    conducted(root, world.config("other"))
    world.started()
    planned = predict_run(Runner(toy_context(root), world.config(), StageSelection()))
    assert planned.stage("measure").outputs == first.stage("measure").outputs
    again = conducted(root, world.config())
    assert again.outputs["value"] == first.outputs["value"] and world.started() == ["learn", "score"]


def test_a_measurement_of_another_world_is_believed(world: World, root: Path) -> None:
    """A measurement outside the tolerance replaces the old one; the new plan resumes the work that is done."""
    first = unfinished(world, root)
    world.set("value", "500")
    again = conducted(root, world.config())
    assert again.stage("measure").why == "ran: measured in every run; the value has changed"
    assert world.started() == ["shape", "learn", "score"]
    assert again.stage("learn").why.endswith("; goes on from the half")
    assert first.stage("learn").key not in toy_context(root).store.works(), "what was gone on from is not left behind"


def test_reasons_are_told_against_the_run_in_mind(world: World, root: Path) -> None:
    """Bug: after a run that failed, and in a rerun of an old one, the reason named what changed since yet another."""
    old = conducted(root, world.config(weight_decay=0.5))
    conducted(root, world.config(weight_decay=0.5, learning_rate=0.25))
    world.set("fail-learn", "75")
    with pytest.raises(TryAgain):
        conducted(root, world.config(momentum=0.5, weight_decay=0.5, learning_rate=0.25))
    newest = predict_run(
        Runner(toy_context(root), world.config(momentum=0.25, weight_decay=0.5, learning_rate=0.25), StageSelection())
    )
    assert newest.stage("learn").why == "ran: training.momentum changed"
    again = predict_run(Runner(toy_context(root), world.config(weight_decay=0.75), StageSelection(rerun=old.id)))
    assert again.stage("learn").why == "ran: training.weight_decay changed"


@pytest.mark.parametrize("other", ["a run that is done", "other settings", "--from measure"])
def test_nothing_is_kept_for_a_run_that_is_not_the_unfinished_one(world: World, root: Path, other: str) -> None:
    """A run that came to its end, another config, and a measurement that is asked for are measured as ever."""
    unfinished(world, root)
    config, selection = world.config(), {}
    if other == "a run that is done":
        conducted(root, config)
    elif other == "other settings":
        config = world.config(learning_rate=0.25)
    else:
        selection = {"from_stage": "measure"}
    world.set("value", "150")
    again = conducted(root, config, **selection)
    assert again.stage("measure").why.endswith("; the value has changed") or other == "--from measure"
    assert (world.folder / "value").read_text() == "150"
    store = toy_context(root).store
    assert (store.folder("value", again.outputs["value"]) / "value").read_text() == "150"


@pytest.mark.parametrize("change", ["settings", "start", "seed"])
def test_other_work_is_not_gone_on_from(world: World, root: Path, change: str) -> None:
    """Half of a training of other settings, another seed or other starting weights is no part of this one."""
    first = unfinished(world, root)
    world.set("value", "500")
    config = world.config()
    if change == "settings":
        config = world.config(learning_rate=0.25)
    elif change == "start":
        world.set("start", "other weights")
    else:
        config = RunConfig(name="toy", seed=7, model=config.model, data=config.data, training=config.training)
    again = conducted(root, config)
    assert "goes on" not in again.stage("learn").why
    assert first.stage("learn").key in toy_context(root).store.works(), "what was not gone on from is still there"


def test_work_that_another_process_is_at_is_left_to_it(world: World, root: Path) -> None:
    """Its lock is held: this run begins by itself and takes nothing away."""
    first = unfinished(world, root)
    world.set("value", "500")
    store = toy_context(root).store
    with store.lock(first.stage("learn").key, lambda seconds: True):
        again = conducted(root, world.config())
    assert "goes on" not in again.stage("learn").why
    assert first.stage("learn").key in store.works()


def test_a_newer_run_that_is_done_counts_though_it_lacks_a_stage(world: World, root: Path) -> None:
    """Runs of earlier versions have fewer stages: an older unfinished one once gave its measurement to later runs."""
    unfinished(world, root)
    world.set("value", "150")
    store = toy_context(root).store
    done = conducted(root, world.config())
    store.runs.save(replace(done, stages=tuple(stage for stage in done.stages if stage.stage != "shape")))
    world.set("value", "155")
    again = conducted(root, world.config())
    assert "unfinished" not in again.stage("measure").why
