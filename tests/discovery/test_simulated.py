"""Fleets that exist only as numbers."""

from pathlib import Path
from typing import Any

import pytest

from fleetune.contracts import wire
from fleetune.contracts.fleet import Device, Fleet
from fleetune.contracts.fleet_request import FleetRequest
from fleetune.contracts.task import quiet
from fleetune.discovery import discover
from fleetune.errors import Refused
from fleetune.launching import LocalSites
from flows.context import same_fleet
from tests.profiling.instances import Scripted

BOARD = {"memory_bytes": 4_000, "speeds": [{"flops_per_s": 1e9}]}
REQUEST: dict[str, Any] = {
    "devices": [{"name": "a", "simulated": BOARD}, {"name": "b", "simulated": {**BOARD, "memory_bytes": 8_000}}],
    "links": {
        "mbit_per_s": 100,
        "latency_s": 1e-3,
        "pairs": [{"source": "b", "target": "a", "mbit_per_s": 8}],
    },
}


def request(**changes: Any) -> FleetRequest:
    """Two simulated devices, the way back slower than the way there."""
    return wire.load(FleetRequest, {**REQUEST, **changes}, "fleet")


def found(asked: FleetRequest) -> Fleet:
    """What discovery makes of it with a launcher that can start nothing."""
    return discover(asked, LocalSites(Scripted({})), quiet, lambda sentence: None)


def test_a_simulated_fleet_is_what_its_file_says() -> None:
    """Memory, speeds, and links in both directions, in bytes; no agent is started."""
    fleet = found(request())
    assert fleet.simulated == ("a", "b")
    assert [device.memory_bytes for device in fleet.devices] == [4_000, 8_000]
    assert (fleet.link("a", "b").bytes_per_s, fleet.link("a", "b").latency_s) == (12_500_000, 1e-3)
    assert (fleet.link("b", "a").bytes_per_s, fleet.link("b", "a").latency_s) == (1_000_000, 0)
    assert fleet.device("a").fingerprint != fleet.device("b").fingerprint
    assert wire.parse(Fleet, wire.text(fleet), "fleet") == fleet


def test_a_real_device_is_written_as_before() -> None:
    """Fleets of real devices keep their digests: nothing says that they are not simulated."""
    device = Device(name="a", memory_bytes=1, cores=1, fingerprint="f")
    assert "simulated" not in wire.text(device)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"links": None}, "give links.mbit_per_s"),
        (
            {"devices": [REQUEST["devices"][0], {"name": "b"}]},
            "a are simulated and b are real; nothing can be measured",
        ),
        ({"devices": [{"name": "b"}]}, "links are given, but b run as processes"),
        ({"devices": [{**REQUEST["devices"][0], "emulate": {"cores": 1}}]}, "device a: it is simulated, so emulate"),
        ({"devices": [{**REQUEST["devices"][0], "accelerator": "cuda:0"}]}, "device a: it is simulated, so emulate"),
        ({"devices": [{"name": "a", "simulated": {**BOARD, "speeds": []}}]}, "speeds is empty"),
        (
            {"devices": [{"name": "a", "simulated": {**BOARD, "memory_bytes": 0}}]},
            "memory_bytes must be a number above",
        ),
        (
            {"devices": [{"name": "a", "simulated": {**BOARD, "speeds": BOARD["speeds"] * 2}}]},
            "speed of model 'any' is used twice",
        ),
        ({"links": {"mbit_per_s": 0}}, "mbit_per_s must be a number above 0"),
        ({"links": {"mbit_per_s": 1, "latency_s": -1}}, "latency_s must be a number of at least 0"),
        ({"links": {"mbit_per_s": 1, "pairs": [{"source": "a", "target": "c", "mbit_per_s": 1}]}}, "device is 'c'"),
        ({"links": {"mbit_per_s": 1, "pairs": [{"source": "a", "target": "a", "mbit_per_s": 1}]}}, "two different"),
        ({"links": {"mbit_per_s": 1, "pairs": REQUEST["links"]["pairs"] * 2}}, "pair 'b -> a' is used twice"),
    ],
)
def test_what_cannot_be_simulated_is_refused(changes: dict[str, Any], said: str) -> None:
    """In one sentence that names the device or the key."""
    with pytest.raises(Refused, match=said):
        request(**changes)


def test_a_simulated_fleet_is_kept_only_when_nothing_changed(tmp_path: Path) -> None:
    """Its links are stated, not measured, so a change within the tolerance of measurements counts too."""
    config: Any = None  # the tolerance in it is not asked for
    folders = []
    for number, speed in enumerate((100, 100, 101)):
        folders.append(tmp_path / str(number))
        fleet = found(request(links={"mbit_per_s": speed}))
        wire.write(fleet, folders[-1] / "fleet.json")
    assert same_fleet(folders[0], folders[1], config)
    assert not same_fleet(folders[0], folders[2], config)
