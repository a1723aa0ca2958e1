"""The sections `schedule` and `promote` of a run file."""

from dataclasses import replace
from typing import Any

import pytest

from fleetune.contracts import json_io
from fleetune.contracts.run_config import SCORES, TASKS, PromotionRequest, RunConfig
from fleetune.contracts.schedule import Schedule
from fleetune.errors import Refused
from stages.catalog import STAGES, config_slice

PLAIN: dict[str, Any] = {
    "name": "nightly",
    "model": {"task": "sequence-classification", "config": {"model_type": "bert"}},
    "data": {"source": "docstrings"},
    "training": {"rounds": 1},
}


def config(**sections: Any) -> RunConfig:
    """The config with these sections added."""
    return json_io.load(RunConfig, {**PLAIN, **sections}, "it")


@pytest.mark.parametrize(
    ("section", "says"),
    [
        ({}, "give cron"),
        ({"cron": "0 2 * * *", "every_s": 60}, "contradict"),
        ({"every_s": 0}, "every_s must be a number above 0"),
        ({"every_s": 60, "timezone": "Europe/Berlin"}, "timezone 'Europe/Berlin' belongs to cron"),
        ({"cron": "0 2 * * *", "day_or": True}, "day_or"),
    ],
)
def test_a_schedule_that_cannot_be(section: dict[str, Any], says: str) -> None:
    """Nothing, both, an interval of nothing, a time zone of an interval and unknown keys are refused by name."""
    with pytest.raises(Refused, match=says):
        config(schedule=section)


@pytest.mark.parametrize(
    ("section", "says"),
    [({"score": "perplexity"}, "allowed are loss, accuracy, macro_f1"), ({"least_gain": -1}, "least_gain")],
)
def test_a_promotion_that_cannot_be(section: dict[str, Any], says: str) -> None:
    """A score that the task does not have is refused before anything is trained, with those that it has."""
    with pytest.raises(Refused, match=says):
        config(promote=section)


def test_nothing_is_promoted_on_simulated_devices() -> None:
    """A simulated fleet trains nothing, so that `promote` contradicts it."""
    speeds = [{"flops_per_s": 1e9}]
    simulated = {
        "devices": [{"name": "a", "simulated": {"memory_bytes": 1 << 30, "speeds": speeds}}],
        "links": {"mbit_per_s": 9},
    }
    with pytest.raises(Refused, match="promote: device a is simulated"):
        config(fleet=simulated, promote={})


def test_no_stage_key_has_them() -> None:
    """A schedule or promotion that is added or changed runs no stage again, and a config without them is written
    without them."""
    bare = config()
    full = replace(bare, schedule=Schedule(cron="0 2 * * *"), promote=PromotionRequest())
    plain = json_io.dump(full)
    assert json_io.load(RunConfig, plain, "it") == full and {*plain} - {*json_io.dump(bare)} == {"schedule", "promote"}
    for spec in STAGES:
        assert config_slice(spec, plain) == config_slice(spec, json_io.dump(bare))


def test_every_task_has_scores() -> None:
    """The scores that can be asked for are those that evaluation compares."""
    from fleetune.evaluation.trained_model import BETTER

    assert set(SCORES) == set(TASKS) and {name for names in SCORES.values() for name in names} == set(BETTER)
