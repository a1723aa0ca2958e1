"""The catalog of stages agrees with the config, with itself and with the modules."""

import ast
import importlib.util
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from fleetune.contracts import json_io
from fleetune.contracts.run_config import DataRequest, ModelRequest, RunConfig
from fleetune.contracts.training_request import TrainingRequest
from fleetune.errors import Refused
from stages.catalog import STAGES, StageSpec, config_slice, find_stage, producer_of, waves

ROOT = Path(__file__).parents[2]
PLAIN = json_io.dump(
    RunConfig(
        name="small",
        model=ModelRequest(task="causal-lm", source="somewhere"),
        data=DataRequest(source="digits"),
        training=TrainingRequest(rounds=7, batch_samples=16, micro_batch_samples=4),
    )
)


@pytest.mark.parametrize("spec", STAGES, ids=lambda spec: spec.name)
def test_a_row_names_what_exists(spec: StageSpec) -> None:
    """Module, packages and settings of each stage exist, and its inputs are made by earlier stages or the stage it
    follows."""
    assert importlib.util.find_spec(spec.module) is not None
    assert all(metadata.version(package) for package in spec.packages)
    config_slice(spec, PLAIN)
    order = [one.name for wave in waves(STAGES) for one in wave]
    for kind in spec.inputs:
        assert order.index(producer_of(STAGES, kind).name) < order.index(spec.name)


def test_versions_of_all_packages_that_prepare_data_are_in_the_key() -> None:
    """Bug: prepare's key lacked pillow and tokenizers, so prepared data of other versions of them were reused."""
    names = {"PIL": "pillow", "sklearn": "scikit-learn"}
    imported = {
        name.partition(".")[0]
        for path in (ROOT / "fleetune" / "data").glob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        for name in imported_modules(node)
    }
    third_party = imported - set(sys.stdlib_module_names) - {"fleetune"}
    apart = {"huggingface_hub", "pydantic"}  # one downloads files, whose content is hashed; one checks records
    needed = {names.get(name, name) for name in third_party - apart}
    assert needed >= {"pillow", "tokenizers"} and needed <= set(find_stage(STAGES, "prepare").packages)


def imported_modules(node: ast.AST) -> list[str]:
    """Modules that an import statement names; empty for other nodes."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    return [node.module or ""] if isinstance(node, ast.ImportFrom) else []


def test_no_device_is_needed_to_prepare() -> None:
    """Preparation reads no artifact and no setting of the fleet, so that a new device prepares nothing anew."""
    prepare = find_stage(STAGES, "prepare")
    assert prepare.inputs == () and set(config_slice(prepare, PLAIN)) == {"model", "data"}
    assert {kind for kind in find_stage(STAGES, "profile").inputs if kind != "fleet"} == set(prepare.outputs)


@pytest.mark.parametrize("spec", STAGES, ids=lambda spec: spec.name)
def test_unkeyed_inputs_are_inputs(spec: StageSpec) -> None:
    """Unkeyed inputs are inputs, and only stages with unkeyed inputs have key facts."""
    assert set(spec.unkeyed_inputs) <= set(spec.inputs)
    assert bool(spec.key_facts) == bool(spec.unkeyed_inputs) and set(spec.resumes) <= {*spec.inputs, *spec.key_facts}


@pytest.mark.parametrize("spec", STAGES, ids=lambda spec: spec.name)
def test_a_stage_module_is_thin(spec: StageSpec) -> None:
    """A stage module has at most 60 lines."""
    spec = importlib.util.find_spec(spec.module)
    assert spec is not None and spec.origin is not None
    assert len(Path(spec.origin).read_text().splitlines()) <= 60


@pytest.mark.parametrize(
    ("setting", "readers"),
    [
        ("training.learning_rate", {"train"}),
        ("training.rounds", {"train"}),
        ("training.optimizer", {"profile", "train"}),
        ("training.micro_batch_samples", {"profile", "plan", "train"}),
        ("strategy.name", {"plan"}),
        ("data.max_length", {"prepare"}),
        ("model.precision", {"prepare", "profile", "train", "evaluate"}),
        ("fleet.tolerance", {"discover"}),
        ("seed", set()),
    ],
)
def test_a_setting_is_read_by_the_stages_that_need_it(setting: str, readers: set[str]) -> None:
    """Each setting is in the slices of its direct readers only; the seed is in no slice but in every key."""

    def holds(cut: dict[str, Any], path: str) -> bool:
        first, _, rest = path.partition(".")
        return first in cut and (not rest or holds(cut[first], rest))

    assert {spec.name for spec in STAGES if holds(config_slice(spec, PLAIN), setting)} == readers


def test_the_slice_is_all_that_a_stage_gets() -> None:
    """Settings stay nested as in the config, and nothing else is in the slice."""
    assert config_slice(find_stage(STAGES, "plan"), PLAIN) == {
        "strategy": {"name": "asteroid", "options": {}},
        "training": {"batch_samples": 16, "micro_batch_samples": 4},
    }


def test_a_section_that_says_nothing_is_no_part_of_any_slice() -> None:
    """An empty optional section changes no key; a filled one is read by its one reader."""
    assert "profile" not in PLAIN and "profile" not in config_slice(find_stage(STAGES, "profile"), PLAIN)
    asked = {**PLAIN, "profile": {"scores": True}}
    assert json_io.dump(json_io.load(RunConfig, asked, "run")) == asked
    assert [spec.name for spec in STAGES if "profile" in config_slice(spec, asked)] == ["profile"]
    assert config_slice(find_stage(STAGES, "profile"), asked)["profile"] == {"scores": True}
    assert json_io.dump(json_io.load(RunConfig, {**PLAIN, "profile": {}}, "run")) == PLAIN


def test_monitor_shares_the_wave_of_train() -> None:
    """Stages run in the order of the catalog, `monitor` beside `train`."""
    assert [[spec.name for spec in wave] for wave in waves(STAGES)] == [
        ["discover"],
        ["prepare"],
        ["profile"],
        ["plan"],
        ["train", "monitor"],
        ["evaluate"],
    ]


def test_an_unknown_stage_is_refused_with_the_list() -> None:
    """Unknown stages and kinds of artifact are refused with the known ones."""
    with pytest.raises(Refused, match="'trian' does not exist; stages are discover, prepare, profile, plan, train"):
        find_stage(STAGES, "trian")
    with pytest.raises(Refused, match="no stage makes 'plam'; kinds are fleet, measurement, model, data"):
        producer_of(STAGES, "plam")
