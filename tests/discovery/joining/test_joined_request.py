"""Fleet requests extended by devices that joined."""

from pathlib import Path

import pytest

from fleetune.contracts.fleet import Engine, ModelSpeed, NetworkSpec, SimulatedDevice
from fleetune.contracts.fleet_request import DeviceRequest, Emulate, FleetRequest, Join
from fleetune.discovery.joining import JoinedDevice, joined_request
from fleetune.discovery.joining.host_side import add_joined
from fleetune.discovery.joining.introduction import EngineReport
from fleetune.discovery.joining.network import LOOPBACK, LocalNetwork
from fleetune.errors import Refused, TryAgain
from tests.support.discovery.joining.both_sides import Devices, Said

ASKED = Join(token_file="token")


def joined(name: str, port: int = 2376) -> JoinedDevice:
    """A device that has joined."""
    engine = Engine(name=name, address=f"tcp://192.0.2.7:{port}", tls=f"/kept/{name}")
    return JoinedDevice(name=name, engine=engine, facts=EngineReport(version="9.9", cores=4, memory_bytes=8))


def test_joined_devices_are_added() -> None:
    """Devices that joined are added as containers on their engines; the file's own devices stay unchanged."""
    here = DeviceRequest(name="here")
    request = FleetRequest(devices=(here,), engines=(joined("box").engine,), join=ASKED)
    made = add_joined(request, (joined("a"), joined("b")))
    assert made.devices == (
        here,
        DeviceRequest(name="a", launcher="docker", engine="a"),
        DeviceRequest(name="b", launcher="docker", engine="b"),
    )
    assert [engine.name for engine in made.engines] == ["box", "a", "b"]
    assert add_joined(request, ()) == request


@pytest.mark.parametrize("used", [True, False], ids=["used", "unused"])
def test_an_engine_of_the_file_is_not_taken_over(used: bool) -> None:
    """Regression: a device could join under the name of a listed engine and take over its work."""
    devices = (DeviceRequest(name="b", launcher="docker", engine="a"),) if used else ()
    request = FleetRequest(devices=devices, engines=(joined("a", port=1).engine,), join=ASKED)
    with pytest.raises(Refused, match="engine a: it is in the fleet file, and a device has joined by that name, from"):
        add_joined(request, (joined("a"),))


def test_a_device_of_the_file() -> None:
    """A listed device keeps its settings and gets the engine that joined under its name."""
    asked = DeviceRequest(name="a", launcher="docker", engine="local", emulate=Emulate(cores=0.5))
    made = add_joined(FleetRequest(devices=(asked,), join=ASKED), (joined("a"),))
    assert made.devices == (DeviceRequest(name="a", launcher="docker", engine="a", emulate=Emulate(cores=0.5)),)
    assert made.engines == (joined("a").engine,)


@pytest.mark.parametrize(
    ("device", "where"),
    [
        (DeviceRequest(name="a"), "processes of this machine"),
        (DeviceRequest(name="a", launcher="docker", engine="box"), "engine box"),
    ],
)
def test_a_name_that_another_device_has(device: DeviceRequest, where: str) -> None:
    """A device that joins under the name of a listed device on another machine is refused."""
    request = FleetRequest(devices=(device,), engines=(joined("box").engine,), join=ASKED)
    with pytest.raises(Refused, match=f"device a: it is in the fleet file, with {where}, and another device"):
        add_joined(request, (joined("a"),))


def test_a_fleet_without_devices() -> None:
    """A fleet without devices raises TryAgain with the command to run on each device."""
    with pytest.raises(TryAgain, match="none has joined within 10 s; run fleetune join"):
        add_joined(FleetRequest(devices=(), join=ASKED), ())


def test_requests_for_which_nothing_listens(tmp_path: Path) -> None:
    """Nothing listens without `join`, and `join` for simulated devices is refused."""
    request = FleetRequest()
    assert joined_request(request, tmp_path / "kept", print) is request
    number = SimulatedDevice(memory_bytes=1, speeds=(ModelSpeed(flops_per_s=1e9),))
    of_numbers = FleetRequest(
        devices=(DeviceRequest(name="n", simulated=number),), links=NetworkSpec(mbit_per_s=1), join=ASKED
    )
    with pytest.raises(Refused, match="simulated, so none can join"):
        joined_request(of_numbers, tmp_path / "kept", print)
    assert not (tmp_path / "kept").exists()


def test_a_device_joins_a_request(devices: Devices, token: Path, tmp_path: Path) -> None:
    """A request with `join` returns with the device that joined."""
    said = Said()
    request = FleetRequest(devices=(), join=Join(token_file=str(token), wait_s=1))
    here = LocalNetwork(addresses=(LOOPBACK,), port=0, clock=lambda: 2.0 if (tmp_path / "kept" / "b").exists() else 0.0)
    devices.start("b")
    made = joined_request(request, tmp_path / "kept", said.sentences.put, here)
    assert made.devices == (DeviceRequest(name="b", launcher="docker", engine="b"),)
    assert [(engine.name, engine.tls) for engine in made.engines] == [("b", str(tmp_path / "kept" / "b"))]
    said.wait("listening 1 s for devices that join")
