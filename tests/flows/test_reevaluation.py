"""A checkpoint that is evaluated again: what it is given, and which data fit."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fleetune.contracts import json_io
from fleetune.contracts.run_config import Lora
from fleetune.contracts.task import StageTask
from fleetune.data.prepared_data import PreparedData
from fleetune.data.seen_samples import seen_samples
from fleetune.errors import Refused, TryAgain
from fleetune.launching import Command, Job
from fleetune.store import RunRecord, StageRecord, Store
from flows.configs import RUNS
from flows.context import RunContext, StageSelection
from flows.past_runs import load_results
from flows.preflight import predict_run
from flows.reevaluation import EvaluationRequest, check_fit, reevaluation
from flows.runner import Runner
from flows.without_prefect import run_without_prefect
from tests.support.cli.runs import add_run
from tests.support.data.samples import json_lines, prepared
from tests.support.flows.past_runs import put_data, trained_run
from tests.support.flows.toy_pipeline import World, run_toy, toy_context


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """An empty store."""
    return Store(tmp_path / "store")


def test_the_past_runs_own_artifacts_are_given(store: Store) -> None:
    """Whatever has been measured or trained since, the evaluation reads the artifacts of the run that was named."""
    past = trained_run(store)
    found = reevaluation(EvaluationRequest(run="demo"), store)
    assert dict(found.given) == past.outputs and not found.other_data
    runner = found.runner(RunContext(store=store, contents=dict.fromkeys(("data", "model weights"), lambda _: "c")))
    assert [spec.name for spec in runner.specs] == ["evaluate"]
    assert predict_run(runner).stage("evaluate").inputs == past.outputs


def test_other_data_are_prepared_and_checked(store: Store) -> None:
    """Data that were named are prepared by a run of their own, even from the same source, and must fit."""
    past = trained_run(store)
    asked: list[StageSelection] = []
    known: list[Any] = []
    labels = [("no", "yes"), ("no", "perhaps", "yes")]

    def prepare(context: RunContext, config: Any, selection: StageSelection) -> RunRecord:
        asked.append(selection)
        known.append(config.model.config["id2label"])
        digest = put_data(store, labels.pop(0), tokenizer="t")
        stage = StageRecord(stage="prepare", key="1" * 64, outputs={"data": digest})
        return replace(past, id="demo-2", config=config, stages=(stage,))

    context = RunContext(store=store, contents=dict.fromkeys(("data", "model weights"), lambda _: "c"))
    request = EvaluationRequest(run="demo", data="docstrings", changes=("data.test_samples=7",))
    found = reevaluation(request, store)
    assert found.config.data.test_samples == 7 and found.config.training == past.config.training
    assert found.runner(context, prepare).given["checkpoint"] == past.outputs["checkpoint"]
    with pytest.raises(Refused, match=r"no, perhaps, yes.* trained for no, yes"):
        found.runner(context, prepare)
    assert {selection.until for selection in asked} == {"prepare"}
    left = store.runs.load("demo-2")
    assert (left.state, left.exit_code) == ("refused", 64) and "no, perhaps, yes" in left.error
    assert {selection.kind for selection in asked} == {"evaluation"}
    assert known == [{"0": "no", "1": "yes"}] * 2, "the classes keep the numbers of the model, whatever the data have"


@pytest.mark.parametrize(
    ("changes", "source", "validation"),
    [
        (("data.source={new}",), "{new}", 1.0),
        (("data.files=[{new}]",), "", 1.0),
        (("data.source={new}", "data.test_fraction=0.5"), "{new}", None),
        (("data.source={new}", "data.validation=0.5"), "{new}", 0.5),
        (("data.validation={new}",), "{old}", "{new}"),
        (("data.max_length=48",), "{old}", "{held}"),
    ],
)
@pytest.mark.parametrize("listed", [False, True])
def test_the_data_that_are_named_are_scored_whole(
    listed: bool, changes: tuple[str, ...], source: str, validation: Any, store: Store, tmp_path: Path
) -> None:
    """Bug: the validation file of the past run was scored under the name of the new file, and of a new file a fifth, or
    as many rows as the past test split had."""
    paths = {name: str(tmp_path / f"{name}.csv") for name in ("old", "held", "new")}
    for path in paths.values():
        Path(path).write_text("text,label\na,b\n")
    past = trained_run(store)
    place = {"files": (paths["old"],), "source": ""} if listed else {"source": paths["old"]}
    data = replace(past.config.data, validation=paths["held"], test_samples=7, **place)
    store.runs.save(replace(past, config=replace(past.config, data=data)))
    request = EvaluationRequest(run="demo", changes=tuple(change.format(**paths) for change in changes))
    found = reevaluation(request, store)
    asked, kept = found.config.data, source == "{old}"
    assert (asked.source, asked.files) == (
        (data.source, data.files) if kept else (source.format(**paths), () if source else (paths["new"],))
    )
    assert asked.validation == (validation.format(**paths) if isinstance(validation, str) else validation)
    assert asked.test_samples == (7 if validation == "{held}" else None)
    assert found.title.endswith("held.csv" if validation == "{held}" else "new.csv")


def test_named_data_are_no_window(store: Store, tmp_path: Path) -> None:
    """Bug: of a folder that was named, the newest files were scored, and a file was refused for a key of the past run;
    a window that is asked for is taken."""
    past = trained_run(store)
    data = replace(past.config.data, source=str(tmp_path), newest_files=7)
    store.runs.save(replace(past, config=replace(past.config, data=data)))
    (tmp_path / "new.csv").write_text("text,label\na,b\n")
    for changes, newest in (
        ((f"data.source={tmp_path / 'new.csv'}",), None),
        ((f"data.files=[{tmp_path / 'new.csv'}]",), None),
        ((f"data.source={tmp_path}", "data.newest_files=3"), 3),
        (("data.max_length=48",), 7),
    ):
        assert reevaluation(EvaluationRequest(run="demo", changes=changes), store).config.data.newest_files == newest


@pytest.mark.parametrize(("changes", "samples"), [((), 7), (("data.streaming=false",), None)])
def test_a_stream_keeps_its_number_of_rows(
    changes: tuple[str, ...], samples: int | None, store: Store, tmp_path: Path
) -> None:
    """Bug: a file that was named in place of a stream was not scored whole, but as many rows of it, or was refused as
    no stream."""
    past = trained_run(store)
    data = replace(past.config.data, source="owner/set", streaming=True, train_samples=9, test_samples=7)
    store.runs.save(replace(past, config=replace(past.config, data=data)))
    found = reevaluation(EvaluationRequest(run="demo", changes=(*changes, "data.source=owner/other")), store)
    assert found.config.data.test_samples == samples
    (tmp_path / "new.csv").write_text("text,label\na,b\n")
    for named in (f"data.source={tmp_path / 'new.csv'}", f"data.files=[{tmp_path / 'new.csv'}]"):
        asked = reevaluation(EvaluationRequest(run="demo", changes=(*changes, named)), store).config.data
        assert (asked.streaming, asked.test_samples) == (False, None)
    beside = EvaluationRequest(run="demo", changes=(f"data.validation={tmp_path / 'new.csv'}",))
    with pytest.raises(Refused, match="stands beside a stream.*give the same as data.source, which is scored whole"):
        reevaluation(beside, store)


@pytest.mark.parametrize("streaming", [False, True])
def test_data_are_named_as_in_a_run_file(
    streaming: bool, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bug: a path that is relative to the run files was refused, and a password in a URL was shown."""
    past = trained_run(store)
    data = replace(past.config.data, source="owner/set", streaming=streaming, train_samples=9, test_samples=7)
    store.runs.save(replace(past, config=replace(past.config, data=data)))
    (tmp_path / "new.csv").write_text("text,label\na,b\n")
    (tmp_path / "there" / RUNS).mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "there")
    for written in ("../../../new.csv", "../../../new.csv  # held out", "../new.csv"):
        asked = reevaluation(EvaluationRequest(run="demo", changes=(f"data.source={written}",)), store).config.data
        assert (asked.source, asked.streaming) == (str(tmp_path / "new.csv"), False)
    with pytest.raises(Refused) as told:
        reevaluation(EvaluationRequest(run="demo", changes=("data.source=https://me:secret@host/r.csv",)), store)
    assert "password" in str(told.value) and "secret" not in str(told.value)


def test_the_number_of_samples_that_were_trained_on(store: Store, tmp_path: Path) -> None:
    """The evaluation is told it by the data that the checkpoint was trained on, also of a run that evaluated before;
    of the data of its training it counts itself, and of data that are gone, or a model that began as an earlier run's,
    it is not known."""
    rows = [{"text": f"{n}", "label": "no" if n % 2 else "yes"} for n in range(40)]
    path = json_lines(tmp_path / "rows.jsonl", rows)
    made = [prepared(tmp_path / f"{share}", path, validation=share).folder for share in (0.2, 0.5, 1.0)]
    trained, other, every = (store.put("data", folder, stage_key="0" * 64, inputs={}) for folder in made)
    past = trained_run(store, data=trained)
    shared = seen_samples(PreparedData(store.folder("data", trained)), PreparedData(store.folder("data", other)))
    runs = [(trained, None), (other, shared), (every, 32)]
    context = RunContext(store=store, contents=dict.fromkeys(("data", "model weights"), lambda _: "c"))

    def prepare(digest: str) -> Any:
        stage = StageRecord(stage="prepare", key="1" * 64, outputs={"data": digest})
        return lambda context, config, selection: replace(past, id="demo-2", stages=(stage,))

    for digest, number in runs:
        found = reevaluation(EvaluationRequest(run="demo", changes=("data.test_fraction=0.5",)), store)
        runner = found.runner(context, prepare(digest))
        assert runner.selection.trained_on == number
        again = StageRecord(stage="evaluate", key="2" * 64, state="done", inputs=dict(runner.given))
        store.runs.save(replace(past, id="demo-3", stages=(again,)))
        assert reevaluation(EvaluationRequest(run="demo-3"), store).runner(context).selection.trained_on == number
    model = store.local / "artifacts" / "checkpoint" / ("e" * 32) / "model"
    model.mkdir(parents=True)
    for changed in (
        replace(past.config.model, source=str(model), config=None),
        replace(past.config.model, lora=Lora(targets=("q",), start=str(model.with_name("adapter")))),
    ):
        store.runs.save(replace(past, id="demo-3", config=replace(past.config, model=changed), stages=(again,)))
        known = reevaluation(EvaluationRequest(run="demo-3"), store).runner(context).selection.trained_on
        assert known == "it began as the model of an earlier run"
    store.runs.save(replace(past, id="demo-3", stages=(again,)))
    store.storage.remove(f"artifacts/data/{trained}")
    assert "gone" in str(reevaluation(EvaluationRequest(run="demo-3"), store).runner(context).selection.trained_on)


@pytest.mark.parametrize(
    ("source", "start", "continued"),
    [
        (None, None, False),
        ("{other}/model", None, False),
        ("{kept}/model", None, True),
        ("{kept}/model", "", True),
        ("{other}/model", "{kept}/adapter", True),
    ],
)
def test_stages_are_told_of_a_model_that_an_earlier_run_began(
    source: str | None, start: str | None, continued: bool, root: Path, world: World
) -> None:
    """Bug: rows that the earlier run had trained on counted as not trained on. So it is with its model, adapters on its
    model, and its adapter."""
    places = {"kept": root / "artifacts" / "checkpoint" / ("e" * 32), "other": root}
    source, begun = (text and text.format(**places) for text in (source, start))
    for text in filter(None, (source, begun)):
        Path(text).mkdir(parents=True)
    lora = None if begun is None else Lora(targets=("q",), start=begun or None)
    config = world.config()
    config = replace(config, model=replace(config.model, source=source, config=None, lora=lora)) if source else config
    told: list[bool] = []

    class Telling:
        """A launcher that starts nothing."""

        def start(self, command: Command) -> Job:
            """Note what the stage would be told."""
            path = next(path for path in command.reads if path.name == "task.json")
            told.append(json_io.read(StageTask, path).facts.continued)
            raise TryAgain("no stage is started here")

    with pytest.raises(TryAgain, match="no stage is started"):
        run_without_prefect(Runner(replace(toy_context(root), launcher=Telling()), config, StageSelection()))
    assert set(told) == {continued}


@pytest.mark.parametrize(
    ("other", "said"),
    [
        ({"labels": ("no", "perhaps", "yes")}, ("perhaps", "with no others")),
        ({"labels": ("yes", "no")}, ("yes, no", "no, yes")),
        ({"tokenizer": "other"}, ("tokenizer", "random weights")),
        ({"size": 8}, ("3 x 8 x 8", "data.image_size")),
    ],
)
def test_data_that_do_not_fit(store: Store, other: dict[str, Any], said: tuple[str, ...]) -> None:
    """Other classes or another order of them, another tokenizer and images of another size are refused by name."""
    trained = put_data(store, size=4 if "size" in other else 0)
    with pytest.raises(Refused) as refused:
        check_fit(store, "demo-1", trained, put_data(store, **other))
    assert all(word in str(refused.value) for word in said), str(refused.value)
    check_fit(store, "demo-1", trained, trained)


def test_data_of_an_earlier_version_fit(store: Store) -> None:
    """They have no configuration of the model beside its tokenizer, as those of today do."""
    check_fit(store, "demo-1", put_data(store), put_data(store, config="{}"))


def test_numbers_fit_whatever_their_column_is_called(store: Store) -> None:
    """Bug: a regression trained on `price` was not evaluated on a file whose numbers are in a column `value`."""
    trained, other = (put_data(store, labels=(name,), task="sequence-regression") for name in ("price", "value"))
    check_fit(store, "demo-1", trained, other)


@pytest.mark.parametrize(
    ("request_", "said"),
    [
        (EvaluationRequest(run="nothing"), ("nothing", "none")),
        (EvaluationRequest(run="demo", changes=("training.rounds=3",)), ("training.rounds", "about the data")),
        (EvaluationRequest(run="demo", data="digitz"), ("digitz", "digits")),
        (EvaluationRequest(run="demo", changes=("data.sauce=x",)), ("sauce", "source")),
    ],
)
def test_a_refusal_names_what_is_wrong(store: Store, request_: EvaluationRequest, said: tuple[str, ...]) -> None:
    """Unknown runs, and changes of anything but the data, are refused before anything runs."""
    trained_run(store)
    with pytest.raises(Refused) as refused:
        reevaluation(request_, store)
    assert all(word in str(refused.value) for word in said), str(refused.value)


def test_a_run_without_a_checkpoint(store: Store) -> None:
    """A run that was not trained to its end, and one whose checkpoint is gone, are refused with what to do."""
    bare = trained_run(store, checkpoint="")
    for name, said in (("demo", "none that was trained to its end"), (bare.id, "no checkpoint .* trained to its end")):
        with pytest.raises(Refused, match=said):
            reevaluation(EvaluationRequest(run=name), store)
    past = trained_run(store)
    store.storage.remove(f"artifacts/checkpoint/{past.outputs['checkpoint']}")
    with pytest.raises(Refused, match=f"checkpoint of {past.id} is gone .* fleetune rerun {past.id}"):
        reevaluation(EvaluationRequest(run="demo"), store)


def test_results_of_an_evaluation_are_those_of_its_checkpoint(tmp_path: Path) -> None:
    """`show` finds scores and model of a run whose only stage evaluated the checkpoint of another run."""
    made = add_run(tmp_path / "kept", 1)
    store = Store(tmp_path / "kept")
    alone = replace(made.stage("evaluate"), inputs={"checkpoint": made.outputs["checkpoint"]})
    found = load_results(store, replace(made, id="small-2", stages=(alone,)))
    assert found is not None and found == load_results(store, made)
    again = reevaluation_of(store, replace(made, id="small-2", stages=(alone,)))
    assert "no fleet" in again


def reevaluation_of(store: Store, run: RunRecord) -> str:
    """The refusal of an evaluation of this run."""
    store.runs.save(run)
    with pytest.raises(Refused) as refused:
        reevaluation(EvaluationRequest(run=run.id), store)
    return str(refused.value)


def test_a_stage_runs_on_what_it_is_given(root: Path, world: World) -> None:
    """Given all inputs, one stage runs alone on exactly these, though a newer measurement is stored; the same again is
    reused by its key."""
    first = run_toy(root, world.config())
    world.set("value", "500")
    second = run_toy(root, world.config())
    world.started()
    given = {kind: first.outputs[kind] for kind in ("shape", "weights", "events")}
    assert second.outputs["shape"] != given["shape"], "the newest measurement is another"

    def score(force: bool = False) -> RunRecord:
        selection = StageSelection(only="score", given=given, force=force)
        return run_without_prefect(Runner(toy_context(root), world.config(), selection))

    reused = score()
    assert reused.stage("score").how == "reused" and reused.outputs == {"scores": first.outputs["scores"]}
    assert world.started() == []
    assert score(force=True).outputs == reused.outputs and world.started() == ["score"]


def test_a_kept_measurement_is_not_repeated(root: Path, world: World) -> None:
    """A stage that always runs is taken from the store when it is kept, and refused when it is not there."""
    config = world.config()
    with pytest.raises(Refused, match="measure has to run first"):
        predict_run(Runner(toy_context(root), config, StageSelection(kept=("measure",))))
    first = run_toy(root, config)
    world.set("value", "500")
    kept = run_without_prefect(Runner(toy_context(root), config, StageSelection(kept=("measure",), until="shape")))
    assert kept.outputs["value"] == first.outputs["value"] and kept.stage("measure").how == "reused"
    assert run_toy(root, config).outputs["value"] != first.outputs["value"]
