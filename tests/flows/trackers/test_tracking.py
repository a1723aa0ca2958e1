"""Trackers beside a run."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fleetune.contracts import json_io
from fleetune.contracts.run_config import RunConfig
from fleetune.errors import Refused
from flows.trackers import tracking
from flows.trackers.tracking import Tracking
from flows.tracking import StageEvent
from stages.catalog import STAGES, config_slice
from tests.support.flows.run_pages.runs import PLAIN
from tests.support.flows.trackers.event_file import scalars
from tests.support.flows.trackers.runs import TrainingRun


def beside(run: TrainingRun) -> tuple[Any, list[str]]:
    """A stand-in for the runner of a run, and the notes that it hears."""
    notes: list[str] = []

    def listen(event: StageEvent) -> None:
        notes.append(f"{event.stage} {event.kind}: {event.text}")

    context = SimpleNamespace(store=run.store, listen=listen)
    return SimpleNamespace(context=context, record=run.record, stopped=False, error=None), notes


def test_files_of_a_run_are_whole_when_it_has_ended(tmp_path: Path) -> None:
    """TensorBoard's files lie below the store in a folder called like the run, without a setting."""
    run = TrainingRun(tmp_path / "store")
    runner, notes = beside(run)
    with Tracking(runner):
        run.commit(list(run.made.training.rounds))
        run.log({round: 1.0 + round for round in range(60)})
        run.end()
        runner.record = run.record
    found = scalars(tmp_path / "store" / "tensorboard" / "demo-1")
    assert [step for step, _ in found["train/loss"]] == list(range(60))
    assert [step for step, _ in found["test/accuracy"]] == [0, 60]
    assert {"train/tokens_per_s", "train/samples_per_s", "memory_peak_bytes/a"} <= set(found)
    assert notes == []


def test_a_folder_that_cannot_be_written_is_a_note(tmp_path: Path) -> None:
    """What hinders TensorBoard is told, and the run's own error is the only one that leaves the block."""
    run = TrainingRun(tmp_path / "store")
    (tmp_path / "store" / "tensorboard").write_text("a file")
    run.commit(list(run.made.training.rounds[:1]))
    run.log({0: 1.0})
    runner, notes = beside(run)
    with pytest.raises(Refused, match="its own"), Tracking(runner):
        raise Refused("its own")
    assert len(notes) == 2
    assert notes[0].startswith("run note: tracking.tensorboard: ")


def test_a_tracker_that_hangs_does_not_hold_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that never answers is left after the limit."""
    run = TrainingRun(tmp_path / "store")
    runner, notes = beside(run)
    monkeypatch.setattr(tracking, "END_S", 0.0)
    hung = tracking.threading.Event()

    class Hanging:
        name = "mlflow"

        def update(self, points: Any) -> None:
            hung.wait()

        def close(self, state: str) -> None:
            """Never called in time."""

    with Tracking(runner, lambda store, record: [Hanging()]):
        pass
    assert notes == ["run note: tracking.mlflow: not all of this run was written within 0 s"]
    hung.set()


@pytest.mark.parametrize(
    "asked",
    [{"tensorboard": False}, {"wandb": {"project": "p"}}, {"mlflow": {"uri": "http://host", "experiment": "e"}}],
)
def test_no_stage_depends_on_it(asked: dict[str, Any]) -> None:
    """A run that is tracked elsewhere trains nothing again: no slice of a stage's config, and so no key, has it."""
    plain, tracked = (
        json_io.dump(json_io.load(RunConfig, {**PLAIN, **more}, "by hand")) for more in ({}, {"tracking": asked})
    )
    assert "tracking" not in plain
    assert json_io.load(RunConfig, tracked, "again").tracking != json_io.load(RunConfig, plain, "again").tracking
    for spec in STAGES:
        assert config_slice(spec, plain) == config_slice(spec, tracked)


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"wand": {}}, "wand"),
        ({"wandb": {"project": ""}}, "tracking.wandb: project is empty"),
        ({"wandb": {"project": "p", "api_key": "secret"}}, "api_key"),
        ({"wandb": {"project": "p", "mode": "off"}}, "allowed are online, offline"),
        ({"mlflow": {"uri": ""}}, "tracking.mlflow: uri is empty"),
        ({"mlflow": {"uri": "http://me:secret@host:5000"}}, "set MLFLOW_TRACKING_USERNAME"),
    ],
)
def test_what_is_wrong_is_refused_by_name(asked: dict[str, Any], words: str) -> None:
    """Unknown keys, empty names and secrets are refused, and the message holds no secret."""
    with pytest.raises(Refused) as refused:
        json_io.load(RunConfig, {**PLAIN, "tracking": asked}, "by hand")
    assert words in str(refused.value)
    assert "secret" not in str(refused.value)
