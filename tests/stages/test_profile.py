"""The profile stage passes the cache folder and the scores setting of its task to profiling."""

from pathlib import Path

import pytest

from fleetune.contracts import json_io
from fleetune.contracts.task import StageTask
from fleetune.errors import Refused
from fleetune.profiling.messages import DeviceMeasurement
from fleetune.profiling.task import ProfilingTask
from stages import profile as stage
from stages.entry_point import Channel, StageContext
from tests.support.profiling.instances import MODEL, Scripted, profiling_task

KEY = "0" * 64
ANSWER = DeviceMeasurement(runtime_bytes=1, profiling_s=1.0, units=())


def given(folder: Path, **task: object) -> ProfilingTask:
    """The ProfilingTask that a stage with this task makes."""
    found: list[ProfilingTask] = []
    usual = profiling_task(folder, Scripted({}), ("ann", "bob"))
    json_io.write(usual.fleet, folder / "fleet" / "fleet.json")
    training = {name: getattr(usual.training, name) for name in ("batch_samples", "micro_batch_samples")}
    fields = {
        "stage": "profile",
        "run": "run-7",
        "seed": 3,
        "config": {"model": json_io.dump(MODEL), "training": training},
        "inputs": {kind: str(folder / kind) for kind in ("fleet", "model", "data")},
        "output": str(folder / "output"),
        "work": str(folder / "work"),
        **task,
    }
    with (folder / "said").open("w") as said:
        stage.profile(StageContext(task=StageTask(**fields), channel=Channel(said)), found.append)  # type: ignore[arg-type]
    return found[0]


def test_answers_are_kept_in_the_task_s_folder_by_the_run_s_name(tmp_path: Path) -> None:
    """Measurements are stored in the task's cache folder, which is created with the first of them, under the run's
    id."""
    kept = given(tmp_path, cache=str(tmp_path / "cache")).cache
    assert kept is not None and not (tmp_path / "cache").exists()
    assert kept.load(KEY) is None
    kept.store(KEY, ANSWER)
    entry = kept.load(KEY)
    assert entry is not None and (entry.run, entry.answer) == ("run-7", ANSWER)
    assert [path.name for path in (tmp_path / "cache").iterdir()] == [f"{KEY}.json"]


def test_a_stage_that_is_to_measure_anew_finds_nothing(tmp_path: Path) -> None:
    """With `anew` nothing is loaded from the cache, and measurements are stored."""
    kept = given(tmp_path, cache=str(tmp_path / "cache"), anew=True).cache
    assert kept is not None
    kept.store(KEY, ANSWER)
    assert kept.load(KEY) is None and list((tmp_path / "cache").iterdir())


def test_without_a_folder_nothing_is_kept(tmp_path: Path) -> None:
    """A task without a cache folder has no cache."""
    assert given(tmp_path).cache is None


def test_scores_are_asked_for_by_a_section_of_their_own(tmp_path: Path) -> None:
    """The config's optional section `profile` asks for scores; unknown keys are refused."""
    assert not given(tmp_path).scores
    training = {"batch_samples": 12, "micro_batch_samples": 6}
    config = {"model": json_io.dump(MODEL), "training": training}
    assert given(tmp_path, config={**config, "profile": {"scores": True}}).scores
    assert not given(tmp_path, config={**config, "profile": {"scores": False}}).scores
    with pytest.raises(Refused, match="profile: score: unknown key; allowed are scores"):
        given(tmp_path, config={**config, "profile": {"score": True}})
