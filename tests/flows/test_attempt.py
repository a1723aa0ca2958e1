"""Attempts at a stage: the task that the stage is given, its cache, and data that a container can read."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fleetune.contracts import json_io
from fleetune.contracts.run_config import DataRequest, RunConfig
from fleetune.contracts.task import StageTask
from fleetune.launching import Command, Job, ProcessLauncher
from fleetune.store import Store
from flows.attempt import fits_in_container, for_container, start, write_ingredients
from flows.context import StageSelection
from flows.runner import Runner
from flows.without_prefect import run_without_prefect
from stages.catalog import STAGES, find_stage
from tests.support.filesystem.synced import recorded
from tests.support.flows.toy_pipeline import World, toy_context
from tests.support.training.recording import Recording


class RecordingLauncher:
    """A launcher that keeps the tasks of the stages it starts."""

    def __init__(self) -> None:
        self.tasks: dict[str, StageTask] = {}

    def start(self, command: Command) -> Job:
        """Start a stage as a process."""
        task = json_io.read(StageTask, Path(command.arguments[-1]))
        self.tasks[task.stage] = task
        return ProcessLauncher().start(command)


def tasks_of_run(root: Path, config: RunConfig, **selection: Any) -> dict[str, StageTask]:
    """The tasks of one run, by stage."""
    launcher = RecordingLauncher()
    run_without_prefect(Runner(replace(toy_context(root), launcher=launcher), config, StageSelection(**selection)))
    return launcher.tasks


def test_every_stage_has_a_folder_of_its_own_in_all_runs(world: World, root: Path) -> None:
    """The cache folder lies in the store, is the same for every key, and does not exist until a stage writes to it."""
    first = tasks_of_run(root, world.config())
    second = tasks_of_run(root, world.config(learning_rate=0.5))
    assert first["learn"].work != second["learn"].work
    for tasks in (first, second):
        assert {name: task.cache for name, task in tasks.items()} == {
            name: str(root.resolve() / "cache" / name) for name in tasks
        }
    assert not (root / "cache").exists()


def test_only_a_stage_that_is_asked_for_starts_anew(world: World, root: Path) -> None:
    """Only the stage named by --from ignores its cache; later stages use theirs."""
    assert not any(task.anew for task in tasks_of_run(root, world.config()).values())
    forced = tasks_of_run(root, world.config(learning_rate=0.5), from_stage="shape")
    assert {name for name, task in forced.items() if task.anew} == {"shape"}
    all_again = tasks_of_run(root, world.config(learning_rate=0.5), force=True)
    assert all_again and all(task.anew for task in all_again.values()), "--force measures anew, too"
    assert "learn" in forced


def test_a_run_of_processes_does_not_import_the_docker_library(world: World, root: Path) -> None:
    """Bug: every run imported the Docker library for stages in containers, which few runs ask for."""
    config = world.folder / "config.json"
    json_io.write(world.config(), config)
    program = f"""
import runpy, sys
sys.argv = ["toy_pipeline", "--run", {str(config)!r}, {str(root)!r}]
runpy.run_module("tests.support.flows.toy_pipeline", run_name="__main__", alter_sys=True)
from fleetune.contracts.fleet_request import DeviceRequest, FleetRequest
from fleetune.launching import open_sites
from fleetune.launching.placement import FleetPlacement
with open_sites(FleetPlacement.from_request(FleetRequest(devices=(DeviceRequest(name="desk"),))), print):
    print(*(name for name in sys.modules if "docker" in name.split(".")))
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ended.stdout.split() == [], ended.stderr
    assert [record.state for record in Store(root).runs.all()] == ["done"]


PREPARE, PLAN, MONITOR = (find_stage(STAGES, name) for name in ("prepare", "plan", "monitor"))


@pytest.mark.parametrize(
    ("source", "fits"),
    [("digits", True), ("folder", True), ("private", False), ("rows.csv", False), ("stdlib-sources", False),
     ("owner/name", False)],
)  # fmt: skip
def test_data_that_cannot_be_mounted_are_prepared_beside_the_flow(
    source: str, fits: bool, world: World, tmp_path: Path
) -> None:
    """A container without network reads only mounted folders and its own packages, as a user who owns no file."""
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
    """`prepare` mounts the folder of the data; `plan` reads nothing outside the store."""
    task = StageTask(
        stage="prepare", run="r", seed=0, config={"model": {}}, inputs={}, output=str(world.folder), work="w"
    )
    changed, reads = for_container(PREPARE, task, world.config())
    assert reads == (world.folder,) and changed.config["model"]["task"] == "causal-lm"
    assert for_container(PLAN, task, world.config()) == (task, ())


def test_ingredients_are_on_disk_when_they_have_their_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An attempt whose ingredients a power cut has emptied would never be resumed."""
    done = recorded(monkeypatch)
    write_ingredients(tmp_path, {"seed": "3"})
    (part, named, folder) = done
    assert part.endswith(".part") and Path(part).parent == tmp_path and folder == str(tmp_path)
    assert json.loads(Path(named.removeprefix("=> ")).read_text()) == {"seed": "3"}


def test_what_a_run_writes_lies_in_no_folder_that_a_container_writes(tmp_path: Path) -> None:
    """Bug: a stage in a container could put links in the place of its log, its task and its ingredients."""
    launcher, work = Recording(), tmp_path / "work"
    work.mkdir()
    (tmp_path / "theirs").write_text("theirs")
    (work / "output").symlink_to(tmp_path)  # as a container could have left it before
    task = StageTask(stage="plan", run="r", seed=0, config={}, inputs={}, output=str(work / "output"), work=str(work))
    write_ingredients(work, {})
    start(PLAN, task, launcher, lambda: False).wait()
    (command,) = launcher.commands
    assert command.writes == (work / "output",) and work / "task.json" in command.reads
    for name in ("ingredients.json", "task.json", "stage.log"):
        assert (work / name).is_file() and not any((work / name).is_relative_to(each) for each in command.writes)
    assert (tmp_path / "theirs").read_text() == "theirs" and not (work / "output").is_symlink()
