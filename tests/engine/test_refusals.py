"""What a fleet file may not ask of containers: one sentence, the exit code of its kind, and nothing left behind."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from fleetune.errors import FleetuneError
from tests.support.engine.pipelines import config, run

DEVICE: dict[str, Any] = {"name": "desk", "launcher": "docker", "accelerator": "cpu"}


def fleet(*devices: dict[str, Any], **more: Any) -> dict[str, Any]:
    """A fleet section of mounted containers."""
    return {"image": "fleetune-mounted", "devices": list(devices or (DEVICE,)), **more}


@pytest.mark.parametrize(
    ("asked", "code", "says"),
    [
        (fleet({**DEVICE, "engine": "shed"}, engines=[{"name": "shed", "address": "unix:///nowhere.sock"}]), 75,
         "engine shed does not answer"),
        (fleet({**DEVICE, "engine": "shed"}), 64, "engine is 'shed'; allowed are local"),
        (fleet(engines=[{"name": "shed", "address": "tcp://192.0.2.1:2375"}]), 64, "needs a port and tls"),
        (fleet(image="fleetune-nowhere"), 64, "has no image fleetune-nowhere"),
        (fleet({**DEVICE, "emulate": {"cores": 4096}}), 64, "device desk: emulate.cores is 4096"),
        (fleet({**DEVICE, "emulate": {"memory_bytes": 1 << 60}}), 64, "device desk: emulate.memory_bytes is"),
        (fleet(DEVICE, {**DEVICE, "name": "nano"}, links={"mbit_per_s": 0}), 64, "mbit_per_s must be a number above 0"),
        (fleet(DEVICE, {**DEVICE, "name": "nano", "launcher": "process"}, links={"mbit_per_s": 9}), 64,
         "nano run as processes"),
        (fleet(DEVICE, {**DEVICE}), 64, "device name 'desk' is used twice"),
        (fleet(join={"token_file": "nowhere.token"}), 64, "fleet.join.token_file: 'nowhere.token' does not exist"),
    ],
)  # fmt: skip
def test_a_fleet_that_cannot_be(tmp_path: Path, asked: dict[str, Any], code: int, says: str) -> None:
    """The last line names what was given and what is allowed; the fixture of this folder looks what is left."""
    path = config(tmp_path)
    path.write_text(yaml.safe_dump({**yaml.safe_load(path.read_text()), "fleet": asked}))
    with pytest.raises(FleetuneError, match=re.escape(says)) as refused:
        run(path, tmp_path / "store")
    assert refused.value.exit_code == code
    assert not list(tmp_path.glob("store/artifacts/*/*"))
