"""The cache folder of a stage outlives runs."""

from dataclasses import replace
from pathlib import Path

from fleetune.contracts import json_io
from fleetune.contracts.run_config import RunConfig
from fleetune.contracts.task import StageTask
from fleetune.launching import Command, Job, ProcessLauncher
from flows.context import StageSelection
from flows.runner import Runner, run_without_prefect
from tests.flows.toy_pipeline import World, toy_context


class Told:
    """A launcher that remembers the tasks of the stages it starts."""

    def __init__(self) -> None:
        self.tasks: dict[str, StageTask] = {}

    def start(self, command: Command) -> Job:
        """Start a stage as a process."""
        task = json_io.read(StageTask, Path(command.arguments[-1]))
        self.tasks[task.stage] = task
        return ProcessLauncher().start(command)


def told(root: Path, config: RunConfig, **selection: str) -> dict[str, StageTask]:
    """The tasks of one run, by stage."""
    launcher = Told()
    run_without_prefect(Runner(replace(toy_context(root), launcher=launcher), config, StageSelection(**selection)))
    return launcher.tasks


def test_every_stage_has_a_folder_of_its_own_in_all_runs(world: World, root: Path) -> None:
    """The folder lies in the store whatever the key, and is not created by a stage that caches nothing."""
    first = told(root, world.config())
    second = told(root, world.config(learning_rate=0.5))
    assert first["learn"].work != second["learn"].work
    for tasks in (first, second):
        assert {name: task.cache for name, task in tasks.items()} == {
            name: str(root.resolve() / "cache" / name) for name in tasks
        }
    assert not (root / "cache").exists()


def test_only_a_stage_that_is_asked_for_starts_anew(world: World, root: Path) -> None:
    """Only the stage named by --from ignores its cache; later stages use theirs."""
    assert not any(task.anew for task in told(root, world.config()).values())
    forced = told(root, world.config(learning_rate=0.5), from_stage="shape")
    assert {name for name, task in forced.items() if task.anew} == {"shape"}
    assert "learn" in forced
