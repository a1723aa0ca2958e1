"""The config of data that lie on devices."""

from typing import Any

import pytest

from fleetune.contracts import json_io
from fleetune.contracts.run_config import RunConfig
from fleetune.errors import Refused
from stages.catalog import PLAN, PREPARE, TRAIN, config_slice, content_names

LOCAL = {"x": "/data/x.csv", "y": "digits"}
PLAIN: dict[str, Any] = {
    "name": "r",
    "fleet": {"devices": [{"name": "s"}, {"name": "x"}, {"name": "y"}]},
    "model": {"task": "causal-lm", "source": "somewhere"},
    "data": {"source": "held-out.csv", "local": LOCAL},
    "training": {"rounds": 1},
    "strategy": {"name": "split-learning"},
}


def loaded(**changes: Any) -> RunConfig:
    """The config with some sections replaced."""
    return json_io.load(RunConfig, {**PLAIN, **changes}, "run")


@pytest.mark.parametrize("strategy", ["split-learning", "lola-deft"])
def test_a_config_with_local_data_reads_as_it_is_written(strategy: str) -> None:
    """Both strategies whose lanes have data of their own take them."""
    config = loaded(strategy={"name": strategy})
    assert config.data.local == LOCAL
    assert json_io.load(RunConfig, json_io.dump(config), "again") == config


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"data": {"source": "a.csv", "local": {"z": "b.csv"}}}, "data.local: device is 'z'; allowed are s, x, y"),
        ({"data": {"source": "a.csv", "local": {"x": ""}}}, "data.local.x is empty"),
        (
            {"data": {"local": LOCAL}},
            "source is empty, and what lies on devices .* cannot be tested on; give data.source",
        ),
        ({"strategy": {"name": "asteroid"}}, "with strategy asteroid samples or labels would leave their device"),
        ({"strategy": {"name": "d2ft"}}, "choose split-learning or lola-deft, or leave data.local out"),
    ],
)
def test_what_cannot_keep_data_on_its_device_is_refused(changes: dict[str, Any], words: str) -> None:
    """The refusal names the key and what is allowed."""
    with pytest.raises(Refused, match=words):
        loaded(**changes)


def test_simulated_devices_have_no_data() -> None:
    """A simulated fleet is planned on, and nobody could read data there."""
    speeds = [{"model": "any", "flops_per_s": 1e9, "layer_s": 1e-5}]
    devices = [{"name": name, "simulated": {"memory_bytes": 10**9, "speeds": speeds}} for name in LOCAL]
    with pytest.raises(Refused, match="data.local: device x is simulated and has no data"):
        loaded(fleet={"devices": devices, "links": {"mbit_per_s": 1}})


def test_stages_read_what_they_need_of_local_data_and_keys_of_other_runs_stay() -> None:
    """Where data lie on devices prepare knows the fleet and their digests; without, its slice and key are as ever."""
    plain = json_io.dump(loaded())
    assert "fleet" in config_slice(PREPARE, plain) and "local data" in content_names(PREPARE, plain)
    assert config_slice(TRAIN, plain)["data"] == config_slice(PLAN, plain)["data"] == {"local": LOCAL}
    usual = json_io.dump(loaded(data={"source": "held-out.csv"}))
    assert set(config_slice(PREPARE, usual)) == {"model", "data"} and "local" not in usual["data"]
    assert content_names(PREPARE, usual) == PREPARE.content and "data" not in config_slice(TRAIN, usual)
