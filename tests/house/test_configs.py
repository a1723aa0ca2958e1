"""Every file under configs/ is a test case: it is short, complete, and loads."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from fleetune import solving
from fleetune.contracts import json_io
from fleetune.contracts.fleet import SimulatedDevice
from fleetune.contracts.run_config import DataRequest, ModelRequest, StrategyRequest
from fleetune.data.sources import validate_data
from flows import configs, yaml_file

CONFIGS = Path(__file__).parents[2] / "configs"
KINDS: dict[str, Any] = {
    "models": ModelRequest,
    "devices": SimulatedDevice,
    "data": DataRequest,
    "strategies": StrategyRequest,
}
FILES = sorted(CONFIGS.rglob("*.yaml"))
PROBLEMS = sorted((CONFIGS / "problems").glob("*.json"))
FLEETS = sorted((CONFIGS / "fleets").glob("*.yaml"))
SECTIONS = [file for file in FILES if file.parent.name in KINDS]
RUNS = sorted((CONFIGS / "runs").glob("*.yaml"))
LINES = 25
CONTAINERS = {
    "fusionllm": "two-sites",
    "lola-deft": "server-and-three-docker",
    "split-learning": "edge-docker",
    "d2ft": "edge-docker",
}
"""Run file -> the fleet of containers that docs/planning.md gives for it."""


def test_each_kind_has_files() -> None:
    """There is something to choose from in each folder, and nothing lies anywhere else."""
    assert {file.parent.name for file in FILES} == {*KINDS, "fleets", "runs"}
    assert PROBLEMS
    assert sorted(CONFIGS.rglob("*.*")) == sorted([*FILES, *PROBLEMS])


@pytest.mark.parametrize("file", FILES, ids=lambda file: f"{file.parent.name}-{file.stem}")
def test_file_is_short(file: Path) -> None:
    """A config fits on a screen, and opens by saying what it is."""
    lines = file.read_text().splitlines()
    assert len(lines) <= LINES
    assert lines[0].startswith("# ")


@pytest.mark.parametrize("file", PROBLEMS, ids=lambda file: file.stem)
def test_problem_is_short_and_can_be_solved(file: Path) -> None:
    """A problem fits on a screen, and `fleetune solve` finds a plan of it."""
    assert len(file.read_text().splitlines()) <= LINES
    kind, problem = solving.read(file.read_bytes(), str(file), solving.kinds())
    assert solving.solve(kind, problem).feasible


@pytest.mark.parametrize("file", SECTIONS, ids=lambda file: f"{file.parent.name}-{file.stem}")
def test_section_is_complete(file: Path) -> None:
    """A model, data, strategy or device file is a whole section, with no key unknown."""
    json_io.load(KINDS[file.parent.name], yaml_file.read(file), str(file))


@pytest.mark.parametrize("file", FLEETS, ids=lambda file: file.stem)
def test_fleet_loads(file: Path) -> None:
    """A fleet file with the devices it names is a whole section."""
    assert configs.load_fleet(file).devices


@pytest.mark.parametrize(
    ("name", "devices"),
    [
        ("a", {"nano": 5}),
        ("b", {"nx": 3, "tx2": 2}),
        ("c", {"nx": 1, "tx2": 2, "nano": 3}),
        ("d", {"tx2": 1, "nano": 3}),
    ],
)
def test_environments_of_the_asteroid_paper(name: str, devices: dict[str, int]) -> None:
    """Table 6, at 100 Mbit/s."""
    request = configs.load_fleet(CONFIGS / "fleets" / f"asteroid-{name}.yaml")
    assert Counter(device.rpartition("-")[0] for device in request.simulated) == devices
    assert request.links is not None and request.links.mbit_per_s == 100


@pytest.mark.parametrize("file", RUNS, ids=lambda file: file.stem)
def test_run_loads(file: Path) -> None:
    """A run file with the sections it names is a valid run, called like its file."""
    assert configs.load(file).name == file.stem


@pytest.mark.parametrize("name", ["three-emulated", "server-and-three"])
def test_emulated_fleet_leaves_room(name: str) -> None:
    """The emulated devices together stay below two cores by enough for the coordinator and the system."""
    request = configs.load_fleet(CONFIGS / "fleets" / f"{name}.yaml")
    assert sum(device.emulate.cores or 0 for device in request.devices) < 1.6


@pytest.mark.parametrize("name", ["fusionllm", "lola-deft", "split-learning", "d2ft"])
def test_each_published_strategy_has_a_run_file_of_its_name(name: str) -> None:
    """The strategy is the file's, on the demo's data; the devices that its options name are in its fleets."""
    config = configs.load(RUNS[0].with_name(f"{name}.yaml"))
    assert config.strategy.name == name and config.data == configs.load(RUNS[0].with_name("demo.yaml")).data
    named = {*config.strategy.options.get("helpers", ()), config.strategy.options.get("server", "desk")}
    for fleet in (config.fleet, configs.load_fleet(CONFIGS / "fleets" / f"{CONTAINERS[name]}.yaml")):
        assert named <= {device.name for device in fleet.devices}
    assert all(device.launcher == "docker" for device in fleet.devices)


@pytest.mark.parametrize("file", RUNS, ids=lambda file: file.stem)
def test_run_asks_for_data_that_are_there(file: Path) -> None:
    """No run file of ours is refused for its data: the demo's once asked for more test rows than there are."""
    config = configs.load(file)
    validate_data(config.data, config.model.task)
