"""Stage keys and what is said when they differ."""

import pytest

from fleetune.store import changes, stage_key
from fleetune.store.stage_key import flatten_config

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
    """Each ingredient has its words; inputs are named only when nothing else explains the change."""
    new = {**OLD, **change}
    assert changes(OLD, new) == said
    assert (stage_key(new) == stage_key(OLD)) == (said == "")


def test_an_ingredient_that_went_away_is_a_change() -> None:
    """A setting that the old key had and the new one has not is named too."""
    assert changes({**OLD, "config.model.freeze": "[]"}, OLD) == "model.freeze changed"


def test_a_store_that_knows_nothing_of_the_code_says_so() -> None:
    """Keys of earlier versions have no code in them."""
    old = {name: text for name, text in OLD.items() if not name.startswith("code.")}
    assert changes(old, OLD) == "code of train changed (the earlier code is unknown)"


def test_the_key_does_not_depend_on_the_order_of_ingredients() -> None:
    """A key is a set of named facts."""
    assert stage_key(dict(reversed(OLD.items()))) == stage_key(OLD)
    assert len(stage_key(OLD)) == 32


def test_a_config_is_flattened_to_its_leaves() -> None:
    """Dotted names down to values that are not mappings; lists and empty mappings are values."""
    plain = {"lora": {"r": 8, "targets": ["q", "v"]}, "config": {}, "source": None}
    assert flatten_config(plain, "model") == {
        "model.lora.r": "8",
        "model.lora.targets": '["q", "v"]',
        "model.config": "{}",
        "model.source": "null",
    }
