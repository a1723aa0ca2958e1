"""Stage keys, descriptions of changes, and digests of the source files that a module runs."""

from pathlib import Path

import pytest

from fleetune.errors import Refused
from fleetune.store import changes, stage_key
from fleetune.store.stage_key import MODULE_TEXT, ROOT, SourceDigests, flatten_config
from tests.support.store.code_copies import copied_code, edit

OLD = {
    "stage": "train",
    "stage version": "1",
    "seed": "0",
    "package.torch": "2.13.0",
    "config.training.learning_rate": "0.001",
    "config.training.rounds": "50",
    "code.fleetune/a.py": "0",
    "code.fleetune/b.py": "0",
    "content.data": "d0",
    "content.model weights": "w0",
    "input.profile": "p0",
    "input.plan": "l0",
}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"config.training.learning_rate": "0.002"}, "training.learning_rate changed"),
        ({"content.data": "d1"}, "data changed"),
        ({"content.model weights": "w1"}, "model weights changed"),
        ({"package.torch": "2.14.0"}, "torch version changed"),
        ({"input.profile": "p1"}, "input profile changed"),
        ({"seed": "1"}, "seed changed"),
        ({"stage version": "2"}, "stage version changed"),
        ({"config.training.clip_norm": "1.0"}, "training.clip_norm changed"),
        ({"input.profile": "p1", "input.plan": "l1"}, "input profile and input plan changed"),
        ({"input.profile": "p1", "content.data": "d1"}, "data changed"),
        ({"seed": "1", "content.data": "d1"}, "seed and data changed"),
        (
            {"seed": "1", "content.data": "d1", "content.model weights": "w1", "config.training.rounds": "9"},
            "seed, training.rounds, data and 1 more changed",
        ),
        ({"code.fleetune/b.py": "1"}, "code of train changed (fleetune/b.py)"),
        ({"code.fleetune/b.py": "1", "code.fleetune/a.py": "1"}, "code of train changed (fleetune/a.py and 1 more)"),
        ({"code.fleetune/b.py": "1", "input.plan": "l1"}, "code of train changed (fleetune/b.py)"),
        (
            {"code.fleetune/b.py": "1", "seed": "1", "content.data": "d1", "content.model weights": "w1"},
            "seed, data, 1 more and code of train changed (fleetune/b.py)",
        ),
        ({}, ""),
    ],
)
def test_a_change_is_told_by_its_name(change: dict[str, str], said: str) -> None:
    """Each ingredient has its words; inputs are named only if nothing else explains the change."""
    new = {**OLD, **change}
    assert changes(OLD, new) == said
    assert (stage_key(new) == stage_key(OLD)) == (said == "")


def test_an_ingredient_that_went_away_is_a_change() -> None:
    """A setting that only the old key has is named."""
    assert changes({**OLD, "config.model.freeze": "[]"}, OLD) == "model.freeze changed"


def test_a_store_that_knows_nothing_of_the_code_says_so() -> None:
    """Keys of earlier versions list no code."""
    old = {name: text for name, text in OLD.items() if not name.startswith("code.")}
    assert changes(old, OLD) == "code of train changed (the earlier code is unknown)"


def test_the_key_does_not_depend_on_the_order_of_ingredients() -> None:
    """A key is independent of the order of its ingredients."""
    assert stage_key(dict(reversed(OLD.items()))) == stage_key(OLD)
    assert len(stage_key(OLD)) == 32


def test_a_config_is_flattened_to_its_leaves() -> None:
    """Configs are flattened to dotted names; lists and empty mappings are leaves."""
    plain = {"lora": {"r": 8, "targets": ["q", "v"]}, "config": {}, "source": None}
    assert flatten_config(plain, "model") == {
        "model.lora.r": "8",
        "model.lora.targets": '["q", "v"]',
        "model.config": "{}",
        "model.source": "null",
    }


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A copy of this project's code, to be edited."""
    return copied_code(tmp_path)


@pytest.mark.parametrize(
    ("file", "stages"),
    [
        ("fleetune/training/rounds.py", {"train"}),  # run by a process that train starts
        ("fleetune/solving/split/methods/admm.py", {"plan"}),  # looked up by the method's name
        ("fleetune/planning/revision.py", set()),  # train imports it after a loss, by a line that says so
        ("fleetune/discovery/agent.py", {"discover"}),
        ("fleetune/models/recorder.py", {"prepare", "profile", "train"}),  # blocks with gates are recorded
        ("fleetune/drawing/report.html", {"plan", "evaluate"}),
        ("fleetune/codecs/quantiser.c", {"profile", "train"}),  # compiled for modules beside it
        ("fleetune/models/segment.py", {"prepare", "profile", "train"}),
        ("fleetune/errors.py", {"discover", "prepare", "profile", "plan", "train", "monitor", "evaluate"}),
    ],
)
def test_an_edit_concerns_the_stages_that_run_the_file(copy: Path, file: str, stages: set[str]) -> None:
    """Imports anywhere, modules named by strings, methods looked up by name, templates and C code all count."""
    names = ("discover", "prepare", "profile", "plan", "train", "monitor", "evaluate")
    before = {name: SourceDigests(copy).of(f"stages.{name}") for name in names}
    edit(copy / file)
    after = {name: SourceDigests(copy).of(f"stages.{name}") for name in names}
    changed = {name: {path for path in after[name] if before[name].get(path) != after[name][path]} for name in names}
    assert changed == {name: {file} if name in stages else set() for name in names}


def test_code_is_the_same_wherever_it_lies(copy: Path) -> None:
    """A checkout and an installed copy have the same digests; caches and tests do not count."""
    (copy / "fleetune" / "training" / "__pycache__").mkdir()
    (copy / "fleetune" / "training" / "__pycache__" / "rounds.cpython-311.pyc").write_bytes(b"x")
    there, here = SourceDigests(copy).of("stages.train"), SourceDigests().of("stages.train")
    assert there == here and all(path.startswith(("fleetune/", "stages/train.py", "stages/")) for path in here)
    named = {
        "stages/train.py",
        "stages/entry_point.py",
        "fleetune/training/worker.py",
        "fleetune/preparation/step_comparison.py",
    }
    assert all((ROOT / path).is_file() for path in named)
    assert named - set(here) == {"fleetune/preparation/step_comparison.py"}, "prepare compares, training does not"


LABELS = {"fleetune.recipe", "fleetune.base", "fleetune.mounted", "fleetune.run", "fleetune.owner", "fleetune.engine"}
"""Labels of images and containers, which look like modules of this project and are none."""


def test_modules_that_are_named_by_strings_exist() -> None:
    """A renamed module that a string still names would leave its file out of the stage keys: every such string names a
    module, a package whose module is looked up by name, or a label."""
    sources = SourceDigests()
    texts = {path: path.read_text() for package in ("fleetune", "stages") for path in (ROOT / package).rglob("*.py")}
    named = {match[1] for text in texts.values() for match in MODULE_TEXT.finditer(text)}
    assert {name for name in named - LABELS if not sources.has(name)} == set()
    assert {"stages.train", "fleetune.training.worker"} <= named


def test_a_module_that_does_not_exist_is_refused() -> None:
    """Its stage would otherwise have a key that never changes."""
    with pytest.raises(Refused, match=r"stages\.nowhere: no such module"):
        SourceDigests().of("stages.nowhere")
