"""Where the results of a run come from: the commit of the code, and a fleet that is measured again."""

import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fleetune.contracts import json_io
from fleetune.contracts.run_config import DataRequest, ModelRequest, RunConfig
from fleetune.contracts.training_request import TrainingRequest
from fleetune.data.job import Preparation
from fleetune.data.writer import ensure_data
from fleetune.discovery.measurement import Measurement
from flows.provenance import Commit, MeasurementPair, current_commit, data_content, judge_fleet
from tests.support.data.samples import FRUITS, TEXT, json_lines
from tests.support.discovery.simulated_fleets import discovered, fleet_request
from tests.support.store.code_copies import copied_code, edit


def test_the_data_of_texts_with_images_beside_them_are_those_that_are_prepared(tmp_path: Path) -> None:
    """Bug: the run's digest counted images that its texts name in a column, and that of the preparation did not, so
    that data were called changed in every run."""
    (tmp_path / "1.png").write_bytes(b"image")
    source = json_lines(tmp_path / "r.jsonl", [{**row, "image": "1.png"} for row in FRUITS])
    request = DataRequest(source=str(source), max_length=24)
    model = ModelRequest(task="sequence-classification", config={"model_type": "bert"})
    config = RunConfig(name="one", model=model, data=request, training=TrainingRequest(rounds=1))
    ensure_data(
        Preparation(request=request, spec=TEXT, seed=0, expected_digest=data_content(config)), tmp_path / "data"
    )


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A copy of this project's code, to be edited."""
    return copied_code(tmp_path)


def git(folder: Path, *arguments: str) -> str:
    """Run git with a fixed author."""
    who = ("-c", "user.name=a", "-c", "user.email=a@example.org")
    done = subprocess.run(["git", "-C", str(folder), *who, *arguments], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_a_checkout_tells_its_commit_and_whether_it_was_edited(copy: Path) -> None:
    """An installed copy has no commit, and an edit outside the code leaves the checkout clean."""
    assert current_commit(copy) == Commit()
    git(copy, "init", "-q")
    assert current_commit(copy) == Commit(), "nothing is committed yet"
    git(copy, "add", ".")
    git(copy, "commit", "-qm", "all of it")
    commit = git(copy, "rev-parse", "HEAD")
    assert current_commit(copy) == Commit(id=commit)
    (copy / "notes.txt").write_text("x")
    assert current_commit(copy) == Commit(id=commit)
    edit(copy / "fleetune" / "errors.py")
    assert current_commit(copy) == Commit(id=commit, dirty=True)
    assert current_commit(copy / "fleetune") == Commit(), "a folder of somebody's checkout is not this project's"


def test_a_simulated_fleet_is_kept_only_when_nothing_changed(tmp_path: Path) -> None:
    """Links of simulated fleets are stated, so any change counts, even within the tolerance."""
    config: Any = SimpleNamespace(fleet=fleet_request())
    folders = []
    for number, speed in enumerate((100, 100, 101)):
        folders.append(tmp_path / str(number))
        fleet = discovered(fleet_request(links={"mbit_per_s": speed}))
        json_io.write(fleet, folders[-1] / "fleet.json")
        json_io.write(Measurement(fleet=fleet), folders[-1] / "measurement.json")
    stored = {"fleet": folders[0]}
    kept = [
        judge_fleet(MeasurementPair(stored=stored, measured={"measurement": folder}, config=config, anew=False)).keep
        for folder in folders[1:]
    ]
    assert kept == [True, False]
