"""Reuse of stages by their keys, with the reasons that are shown."""

import json
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from fleetune.contracts.run_config import ModelRequest, RunConfig
from fleetune.errors import Refused
from fleetune.store import RunRecord, Store
from flows.context import StageSelection
from flows.preflight import predict_run
from flows.runner import Runner
from flows.tracking import StageEvent
from flows.without_prefect import run_without_prefect
from stages.catalog import STAGES, find_stage
from tests.support.flows.toy_pipeline import World, run_toy, toy_context


def reasons(record: RunRecord) -> dict[str, str]:
    """stage -> reason, without the stages that always run."""
    return {stage.stage: stage.why for stage in record.stages if stage.stage not in ("measure", "watch")}


def test_the_same_run_twice_runs_nothing_the_second_time(world: World, root: Path) -> None:
    """Stages that measure or follow run again; all others are reused from the first run."""
    first = run_toy(root, world.config())
    assert reasons(first) == dict.fromkeys(("shape", "learn", "score"), "ran: never run before")
    assert world.started() == ["shape", "learn", "score"]
    second = run_toy(root, world.config())
    assert world.started() == []
    assert reasons(second) == dict.fromkeys(("shape", "learn", "score"), f"reused: same key as {first.id}")
    assert second.outputs == first.outputs
    assert second.stage("measure").why == "ran: measured in every run; the stored value is kept, within tolerance"
    assert second.stage("watch").why == "ran: beside learn"


def test_runs_are_in_the_order_in_which_they_began(world: World, root: Path) -> None:
    """A run is the latest one when it began last, in a dry run too, though the clock was set back before it."""
    first = run_toy(root, world.config())
    past = datetime(2020, 1, 1, tzinfo=UTC)
    context = replace(toy_context(root), store=Store(root, clock=lambda: past))
    planned = predict_run(Runner(context, world.config(), StageSelection()))
    second = run_without_prefect(Runner(context, world.config(), StageSelection()))
    assert second.started < first.started and second.order > first.order and planned.order > first.order
    assert context.store.runs.load("latest").id == second.id


@pytest.mark.parametrize(
    ("training", "reran", "said"),
    [
        ({"learning_rate": 0.5}, ["learn", "score"], {"learn": "ran: training.learning_rate changed"}),
        (
            {"batch_samples": 64},
            ["shape", "learn", "score"],
            {"shape": "ran: training.batch_samples changed", "learn": "ran: training.batch_samples changed"},
        ),
    ],
)
def test_one_setting_reruns_exactly_what_depends_on_it(
    world: World, root: Path, training: dict[str, Any], reran: list[str], said: dict[str, str]
) -> None:
    """Stages that do not read the setting are reused; its readers name the setting, and later stages the changed
    input."""
    run_toy(root, world.config())
    world.started()
    again = run_toy(root, world.config(**training))
    assert world.started() == reran
    given = reasons(again)
    assert given == {**given, **said}
    assert given["score"].startswith("ran: input ")


def test_an_edit_of_the_data_reruns_what_depends_on_it(world: World, root: Path) -> None:
    """The stage that reads the data names them; later stages run only if its output has changed."""
    world.set("data", "abc")
    run_toy(root, world.config())
    world.started()
    world.set("data", "abd")
    again = run_toy(root, world.config())
    assert reasons(again)["shape"] == "ran: data changed"
    assert world.started() == ["shape"], "the toy stage makes the same of any data, so the rest is reused"


def test_another_version_of_a_package_reruns_what_computes_with_it(world: World, root: Path) -> None:
    """Only the stage that names the package runs again."""
    run_toy(root, world.config())
    again = run_toy(root, world.config(), numpy="2.0")
    assert reasons(again)["shape"] == "ran: numpy version changed"
    assert reasons(again)["learn"].startswith("reused: ")


def test_an_edit_of_the_code_reruns_what_runs_it(world: World, root: Path) -> None:
    """Bug: a run was reused after a change of training's code; stages that run the file name it."""
    run_toy(root, world.config())
    world.started()
    edited = toy_context(root, code={"tests/support/flows/toy_pipeline.py": "d1", "tests/support/other.py": "d0"})
    again = run_without_prefect(Runner(edited, world.config(), StageSelection()))
    assert reasons(again)["learn"] == "ran: code of learn changed (tests/support/flows/toy_pipeline.py and 1 more)"
    assert world.started() == ["shape", "learn", "score"]
    assert again.stage("measure").why.endswith("the stored value is kept, within tolerance"), "new code, old world"


def test_a_measurement_within_tolerance_keeps_the_stored_one(world: World, root: Path) -> None:
    """A deviation of 5 % changes no digest; 20 % does, and the readers name the changed input."""
    first = run_toy(root, world.config())
    world.started()
    world.set("value", "105")
    near = run_toy(root, world.config())
    assert near.outputs["value"] == first.outputs["value"] and world.started() == []
    world.set("value", "120")
    far = run_toy(root, world.config())
    assert far.stage("measure").why == "ran: measured in every run; the value has changed"
    assert reasons(far)["shape"] == "ran: input value changed"
    assert world.started() == ["shape", "learn", "score"]


def test_a_run_remembers_what_it_measured_and_did_not_believe(world: World, root: Path) -> None:
    """In doubt the stored value is kept and nothing runs again, until two runs in a row see the same other value."""
    first = run_toy(root, world.config())
    world.set("doubt", "")
    world.started()
    for value in ("120", "150", "120"):
        world.set("value", value)
        doubted = run_toy(root, world.config())
        assert doubted.stage("measure").why.endswith(f"; the stored value is kept: {value} was seen once")
        assert doubted.outputs["value"] == first.outputs["value"] and world.started() == []
    believed = run_toy(root, world.config())
    assert believed.stage("measure").why.endswith("; the value has changed")
    assert world.started() == ["shape", "learn", "score"]
    world.set("value", "200")
    asked = run_toy(root, world.config(), from_stage="measure")
    assert asked.stage("measure").why == "ran: asked for with --from; the value has changed"


def test_a_config_of_another_name_reuses_but_does_not_compare(world: World, root: Path) -> None:
    """Keys do not depend on config names; reasons are differences from runs of the same name only."""
    first = run_toy(root, world.config())
    other = run_toy(root, world.config("other", learning_rate=0.5))
    assert reasons(other)["shape"] == f"reused: same key as {first.id}"
    assert reasons(other)["learn"] == "ran: never run before"


def test_a_deleted_artifact_is_made_again(world: World, root: Path) -> None:
    """A key whose artifact is gone is not reused, and the reason says so."""
    first = run_toy(root, world.config())
    world.started()
    toy_context(root).store.storage.remove(f"artifacts/weights/{first.outputs['weights']}")
    again = run_toy(root, world.config())
    assert reasons(again)["learn"] == f"ran: its artifacts are gone from the store, {first.id} had them"
    assert world.started() == ["learn"]


@pytest.mark.parametrize(
    "kind, stage", [("shape", "shape"), ("weights", "learn"), ("metrics", "learn"), ("scores", "score")]
)
@pytest.mark.parametrize("harm", ["a flipped bit", "a file gone", "a manifest of zeros"])
def test_a_run_that_is_reused_looks_at_what_it_points_to(
    harm: str, kind: str, stage: str, world: World, root: Path
) -> None:
    """Bug: a checkpoint with a flipped byte was reused; damaged artifacts are made anew with the reason, and later
    stages are reused if their inputs come out the same."""
    first = run_toy(root, world.config())
    world.started()
    store = toy_context(root).store
    folder = store.folder(kind, first.outputs[kind])
    file = folder / ("events.jsonl" if kind == "metrics" else kind)
    if harm == "a flipped bit":
        file.write_bytes(bytes([file.read_bytes()[0] ^ 1]) + file.read_bytes()[1:])
    elif harm == "a file gone":
        file.unlink()
    else:
        (folder / "manifest.json").write_bytes(bytes(100))
    again = run_toy(root, world.config())
    assert world.started() == [stage] and again.outputs == first.outputs
    said = {"a flipped bit": "is corrupt, its content is not", "a file gone": "is missing"}.get(harm, "not JSON")
    assert reasons(again)[stage].startswith(f"ran: {folder}") and said in reasons(again)[stage]
    assert not store.first_bad(kind, first.outputs[kind])
    assert set(reasons(run_toy(root, world.config())).values()) <= {
        f"reused: same key as {run.id}" for run in (first, again)
    }


def test_a_corrupt_artifact_is_named_before_it_is_read(world: World, root: Path) -> None:
    """When the stage that made it may not run, the run fails with the file's name and exit code 64."""
    first = run_toy(root, world.config())
    world.started()
    store = toy_context(root).store
    (store.folder("shape", first.outputs["shape"]) / "shape").write_text("other")
    with pytest.raises(Refused, match="shape: file of the shape artifact is corrupt.*; delete the artifact's folder"):
        run_toy(root, world.config(learning_rate=0.5), only="learn")
    assert world.started() == []
    newest = store.runs.all()[0]
    assert (newest.state, newest.exit_code) == ("refused", 64)


def test_from_runs_a_known_stage_again_and_only_stops_after_one(world: World, root: Path) -> None:
    """Earlier stages are taken from the store, measurements too."""
    first = run_toy(root, world.config())
    world.started()
    forced = run_toy(root, world.config(), from_stage="learn")
    assert forced.stage("measure").how == "reused"
    assert reasons(forced)["learn"] == "ran: asked for with --from"
    assert world.started() == ["learn"], "it made the same again, so what follows is reused"
    alone = run_toy(root, world.config(learning_rate=0.5), only="learn")
    assert [stage.stage for stage in alone.stages] == ["measure", "shape", "learn"]
    assert world.started() == ["learn"] and alone.stage("shape").outputs == first.stage("shape").outputs


def test_until_ends_the_run_well_after_a_stage(world: World, root: Path) -> None:
    """--until ends the run after a stage, and a whole run reuses those stages."""
    short = run_toy(root, world.config(), until="shape")
    assert [stage.stage for stage in short.stages] == ["measure", "shape"] and short.state == "done"
    world.started()
    assert run_toy(root, world.config()).stage("shape").how == "reused"
    assert run_toy(root, world.config(), from_stage="shape", until="shape").stage("shape").how == "ran"


@pytest.mark.parametrize(
    "selection, said",
    [
        ({"until": "nonsense"}, "stages are measure, shape, learn, watch, score"),
        ({"until": "shape", "only": "shape"}, "--only shape and --until shape both say where to stop"),
        ({"until": "shape", "from_stage": "learn"}, "--from learn comes after --until shape"),
    ],
)
def test_ends_that_contradict_each_other_are_refused(
    selection: dict[str, str], said: str, world: World, root: Path
) -> None:
    """Contradicting options are refused in one sentence, before anything starts."""
    with pytest.raises(Refused, match=said):
        Runner(toy_context(root), world.config(), StageSelection(**selection))


def test_what_must_be_in_the_store_is_asked_for_at_once(world: World, root: Path) -> None:
    """--from and --only without stored inputs name the stage that has to run and the options for it; nothing starts."""
    for selection, said in (
        (
            {"only": "learn"},
            "stage measure has to run first .never run before.; leave out --only, or add --from measure",
        ),
        (
            {"only": "learn", "from_stage": "shape"},
            "first .*; give --from measure instead of --from shape, or leave out --from and --only",
        ),
        ({"from_stage": "nonsense"}, "stages are measure, shape, learn, watch, score"),
    ):
        with pytest.raises(Refused, match=said):
            predict_run(Runner(toy_context(root), world.config(), StageSelection(**selection)))
    run_toy(root, world.config())
    with pytest.raises(Refused, match="stage shape has to run first \\(training.batch_samples changed\\)"):
        predict_run(Runner(toy_context(root), world.config(batch_samples=64), StageSelection(from_stage="learn")))


def test_a_dry_run_says_what_would_happen_and_writes_nothing(world: World, root: Path) -> None:
    """Before the first run everything would run; after it a change shows what depends on it."""
    empty = predict_run(Runner(toy_context(root), world.config(), StageSelection()))
    assert [stage.why for stage in empty.stages] == [
        "ran: never run before",
        "ran: input value is made anew",
        "ran: input value is made anew",
        "ran: beside learn",
        "ran: input shape is made anew",
    ]
    assert not root.exists() and empty.state == "planned"
    run_toy(root, world.config())
    world.started()
    planned = predict_run(Runner(toy_context(root), world.config(learning_rate=0.5), StageSelection()))
    assert [stage.how for stage in planned.stages] == ["ran", "reused", "ran", "ran", "ran"]
    assert planned.stage("learn").why == "ran: training.learning_rate changed"
    assert planned.stage("score").why == (
        "ran: input weights is made anew; with the same weights and events as in an earlier run it is reused"
    )
    assert world.started() == [] and len(toy_context(root).store.runs.all()) == 1


def test_a_run_collects_what_killed_ones_left_half_written(world: World, root: Path) -> None:
    """The start of a run deletes half-written artifacts of killed runs."""
    left = root / "artifacts" / "weights" / f".{'0' * 32}.{'1' * 32}.part"
    left.mkdir(parents=True)
    run_toy(root, world.config())
    assert not left.exists()


def test_a_listener_hears_every_stage(world: World, root: Path) -> None:
    """A stage that runs emits start, progress and end with its reason; a reused stage emits one event."""
    heard: list[StageEvent] = []
    run_without_prefect(Runner(toy_context(root, heard.append), world.config(), StageSelection()))
    assert [(event.kind, event.text) for event in heard if event.stage == "shape"] == [
        ("started", "ran: never run before"),
        ("progress", "shape"),
        ("done", "ran: never run before"),
    ]
    heard.clear()
    run_without_prefect(Runner(toy_context(root, heard.append), world.config(), StageSelection()))
    assert [event.kind for event in heard if event.stage == "shape"] == ["reused"]


def test_a_run_notes_which_commit_of_the_hub_it_reads(world: World, root: Path) -> None:
    """The hub revision is resolved once per run and recorded; keys depend on content, not on the revision."""
    commits = iter("abc")

    def pin(config: RunConfig) -> RunConfig:
        model = ModelRequest(
            task="causal-lm", source="owner/tiny", revision=config.model.revision or next(commits) * 40
        )
        return replace(config, model=model)

    pinning = replace(toy_context(root), pin=pin)
    first = run_without_prefect(Runner(pinning, world.config(), StageSelection()))
    assert toy_context(root).store.runs.load(first.id).config.model.revision == "a" * 40
    assert Runner(pinning, first.config, StageSelection()).config.model.revision == "a" * 40
    contents = {"data": lambda config: "d", "model weights": lambda config: "w"}
    runners = [
        Runner(
            replace(pinning, catalog=STAGES, contents=contents, marks={}, versions=lambda name: "1"),
            world.config(),
            StageSelection(),
        )
        for _ in range(2)
    ]
    assert [runner.config.model.revision for runner in runners] == ["b" * 40, "c" * 40]
    keys = {runner.cache_policy.decide(find_stage(STAGES, "profile"), {"fleet": "f"}).key for runner in runners}
    assert len(keys) == 1


def test_a_run_is_written_down(world: World, root: Path) -> None:
    """run.json has config, seed and code version, and for each stage key, state, times, digests and reason."""
    record = run_toy(root, world.config())
    plain = json.loads((root / "runs" / record.id / "run.json").read_text())
    assert (plain["state"], plain["seed"], plain["config"]["name"]) == ("done", 0, "toy")
    assert (plain["commit"], plain["dirty"]) == ("c0ffee", True)
    learn = next(stage for stage in plain["stages"] if stage["stage"] == "learn")
    assert learn["inputs"] == {kind: record.outputs[kind] for kind in ("value", "shape")}
    assert learn["started"] < learn["ended"] and len(learn["key"]) == 32 and learn["how"] == "ran"
    assert (root / "keys" / f"{learn['key']}.json").exists()
    assert list((root / "work").iterdir()) == []
