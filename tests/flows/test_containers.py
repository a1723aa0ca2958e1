"""Stages that run in containers read only what can be mounted."""

from dataclasses import replace
from pathlib import Path

import pytest

from fleetune.contracts.run_config import DataRequest
from fleetune.contracts.task import StageTask
from flows.attempt import fits_in_container, for_container
from stages.catalog import STAGES, find_stage
from tests.flows.toy_pipeline import World

PREPARE, PLAN, MONITOR = (find_stage(STAGES, name) for name in ("prepare", "plan", "monitor"))


@pytest.mark.parametrize(
    ("source", "fits"),
    [("digits", True), ("folder", True), ("private", False), ("rows.csv", False), ("stdlib-sources", False),
     ("owner/name", False)],
)  # fmt: skip
def test_data_that_cannot_be_mounted_are_prepared_beside_the_flow(
    source: str, fits: bool, world: World, tmp_path: Path
) -> None:
    """A container without a network sees mounted folders and its own packages, as a user who owns no file here."""
    (tmp_path / "folder").mkdir(mode=0o755)
    (tmp_path / "private").mkdir(mode=0o700)
    (tmp_path / "rows.csv").write_text("text,label\n")
    there = tmp_path / source
    config = replace(world.config(), data=DataRequest(source=str(there) if there.exists() else source))
    assert fits_in_container(PREPARE, config) == fits
    if fits and there.exists():  # a container would miss what lies in a folder that it may not enter, and say nothing
        (there / "test").mkdir(mode=0o700)
        assert not fits_in_container(PREPARE, config)
    assert fits_in_container(PLAN, config) and fits_in_container(MONITOR, config), "they read no data"


def test_a_container_is_given_the_folder_of_the_data(world: World) -> None:
    """Preparation reads the folder of the data; the plan stage reads nothing from outside the store."""
    task = StageTask(
        stage="prepare", run="r", seed=0, config={"model": {}}, inputs={}, output=str(world.folder), work="w"
    )
    changed, reads = for_container(PREPARE, task, world.config())
    assert reads == (world.folder,) and changed.config["model"]["task"] == "causal-lm"
    assert for_container(PLAN, task, world.config()) == (task, ())
