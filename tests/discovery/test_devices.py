"""Devices built from requests and machine facts, their threads, and simulated fleets."""

from typing import Any

import pytest

from fleetune.contracts import json_io
from fleetune.contracts.fleet import DOCKER, Device, Engine, Fleet, Machine
from fleetune.contracts.fleet_request import DeviceRequest, Emulate, FleetRequest
from fleetune.contracts.record import record
from fleetune.discovery.devices import build_devices, oversubscription_notes, shared_machines
from fleetune.discovery.machine import Accelerator, MachineFacts
from fleetune.errors import Refused
from tests.support.discovery.simulated_fleets import BOARD, REQUEST, discovered, fleet_request

GPU = Accelerator(name="H", memory_bytes=80)


def facts(**changes: Any) -> MachineFacts:
    """Facts of a machine with 4 cores and 1000 bytes, with changes."""
    usual = {"machine": "m", "cpu": "c", "architecture": "x", "cores": 4.0, "memory_bytes": 1000, "accelerators": ()}
    machine = {"machine_cores": 4.0, "machine_memory_bytes": 1000}
    return MachineFacts(**{**usual, **machine, "python": "3.11", "torch": "2", **changes})


def asked(name: str, accelerator: str = "auto", **emulate: Any) -> DeviceRequest:
    """Device request of that name."""
    return DeviceRequest(name=name, accelerator=accelerator, emulate=Emulate(**emulate))


def fleet(*requests: DeviceRequest) -> FleetRequest:
    """Fleet request of these devices."""
    return FleetRequest(devices=requests)


def test_devices_of_one_machine_share_its_memory_unless_emulated() -> None:
    """Three devices, two on one machine and one elsewhere: halves, an emulated size, and the whole."""
    request = fleet(asked("a"), asked("b", cores=0.5, memory_bytes=100), asked("c"))
    found = build_devices(request, {"a": facts(), "b": facts(), "c": facts(machine="n", memory_bytes=700)})
    assert [(d.name, d.memory_bytes, d.cores, d.emulated) for d in found] == [
        ("a", 500, 4.0, False),
        ("b", 100, 0.5, True),
        ("c", 700, 4.0, False),
    ]


@pytest.mark.parametrize(
    ("emulate", "words"),
    [({"cores": 6}, r"device a: emulate.cores is 6 .* has 4"), ({"memory_bytes": 2001}, "is 2001 .* has 1000")],
)
def test_more_than_the_machine_has_is_refused_with_both_numbers(emulate: dict[str, Any], words: str) -> None:
    """A quota above the machine's capacity is refused with both numbers."""
    with pytest.raises(Refused, match=words):
        build_devices(fleet(asked("a", **emulate)), {"a": facts()})


def test_automatic_devices_take_the_gpus_in_turn() -> None:
    """Three devices take two GPUs in turn and share the memory of the shared one."""
    request = fleet(asked("a"), asked("b"), asked("c"), asked("d", "cpu"))
    found = build_devices(request, {name: facts(accelerators=(GPU, GPU)) for name in "abcd"})
    assert [d.accelerator_name for d in found] == [GPU.name, GPU.name, GPU.name, ""]
    assert [(d.accelerator, d.memory_bytes) for d in found] == [
        ("cuda:0", 40),
        ("cuda:1", 80),
        ("cuda:0", 40),
        ("cpu", 1000),
    ]


def test_a_gpu_that_is_not_there_is_refused_with_those_that_are() -> None:
    """A missing GPU is refused with a list of the existing ones."""
    for there, words in (((), "its machine has none"), ((GPU,), "its machine has cuda:0")):
        with pytest.raises(Refused, match=f"device a: accelerator cuda:3 is requested, and {words}"):
            build_devices(fleet(asked("a", "cuda:3")), {"a": facts(accelerators=there)})


@record
class Change:
    """A change of a machine or request, and whether it changes the fingerprint."""

    facts: dict[str, Any]
    request: DeviceRequest = asked("a")
    matters: bool = True


@pytest.mark.parametrize(
    "change",
    [
        Change(facts={"cpu": "other"}),
        Change(facts={"cores": 2.0}),
        Change(facts={"memory_bytes": 999}),
        Change(facts={"python": "3.12"}),
        Change(facts={"torch": "3"}),
        Change(facts={"accelerators": (GPU,)}),
        Change(facts={"image": "sha256:1"}),
        Change(facts={}, request=asked("a", cores=1.0)),
        Change(facts={}, request=DeviceRequest(name="a", threads=1)),
        Change(facts={}, request=asked("a", memory_bytes=10)),
        Change(facts={"machine": "after a reboot"}, matters=False),
        Change(facts={}, request=asked("b"), matters=False),
    ],
)
def test_a_fingerprint_changes_with_what_lasts(change: Change) -> None:
    """Hardware, software and limits change the fingerprint; a reboot and the device's name do not."""
    (before,) = build_devices(fleet(asked("a")), {"a": facts()})
    (after,) = build_devices(fleet(change.request), {change.request.name: facts(**change.facts)})
    assert (before.fingerprint != after.fingerprint) == change.matters


def boxed(name: str, **emulate: Any) -> DeviceRequest:
    """Device request that runs in a container."""
    return DeviceRequest(name=name, launcher=DOCKER, emulate=Emulate(**emulate))


def test_a_container_is_compared_with_the_whole_machine() -> None:
    """The limits that a container sees affect neither its quota nor its fingerprint.

    The kernel rounds memory limits down to pages, so the exact quota would otherwise be refused.
    """
    request = fleet(boxed("a", cores=2, memory_bytes=600), boxed("b", cores=2, memory_bytes=600), boxed("c"))
    within = {"a": facts(memory_bytes=599), "b": facts(memory_bytes=600, cores=2.0), "c": facts()}
    found = build_devices(request, within)
    assert [(d.cores, d.memory_bytes, d.launcher) for d in found[:2]] == [(2, 600, DOCKER)] * 2
    assert found[0].fingerprint == found[1].fingerprint != found[2].fingerprint
    assert (found[2].cores, found[2].memory_bytes) == (4.0, 333)
    for emulate, words in (({"cores": 5}, "cores is 5 .* has 4"), ({"memory_bytes": 1001}, "is 1001 .* has 1000")):
        with pytest.raises(Refused, match=words):
            build_devices(fleet(boxed("a", **emulate)), {"a": facts(cores=9.0, memory_bytes=9000)})


def test_a_device_keeps_its_engine() -> None:
    """A device keeps the engine of its request."""
    shed = Engine(name="shed", address="ssh://me@shed")
    request = FleetRequest(devices=(DeviceRequest(name="a", launcher=DOCKER, engine="shed"),), engines=(shed,))
    (found,) = build_devices(request, {"a": facts()})
    assert found.engine == "shed"


def test_oversubscribed_cores_are_noted() -> None:
    """Quotas that exceed a machine's cores only in sum give a sentence per machine."""
    request = fleet(asked("a", cores=3), asked("b", cores=2), asked("c", cores=3))
    there = {"a": facts(), "b": facts(), "c": facts(machine="n")}
    (sentence,) = oversubscription_notes(request, there)
    assert sentence.startswith("devices a, b share a machine of 4 cores but are promised 5")
    assert oversubscription_notes(fleet(asked("a", cores=2), asked("b", cores=2)), there) == []


def test_a_fleet_says_which_devices_share_a_machine() -> None:
    """All cores of the machine, whatever a container sees of them; a device that is alone on its machine is not
    listed, and the machine's id, which a restart changes, is nowhere."""
    there = {"a": facts(cores=1.0), "b": facts(machine="n"), "c": facts(), "d": facts(machine="o")}
    assert shared_machines(list("abcd"), there) == (Machine(cores=4.0, devices=("a", "c")),)
    assert shared_machines(list("bd"), there) == ()


def test_containers_share_the_cores_of_their_machine() -> None:
    """The quotas of containers are compared with the machine, not with the limits that one of them sees."""
    request = fleet(boxed("a", cores=3), boxed("b", cores=2))
    (sentence,) = oversubscription_notes(request, {name: facts(cores=1.0) for name in "ab"})
    assert "share a machine of 4 cores but are promised 5" in sentence


def counted(request: FleetRequest, cores: float = 4.0, **machine: object) -> list[int]:
    """Threads of the devices of one machine."""
    there = {d.name: facts(cores=cores, machine_cores=cores, **machine) for d in request.devices}
    return [device.threads for device in build_devices(request, there)]


@pytest.mark.parametrize(
    ("quota", "threads"), [(0.3, 1), (0.9999, 1), (1.0, 1), (1.9, 1), (2.0, 2), (2.5, 2), (4.0, 4)]
)
def test_a_quota_never_has_more_threads_than_cores(quota: float, threads: int) -> None:
    """Regression: every device used one thread; now the quota decides, rounded down and at least one."""
    for request in (asked("a", cores=quota), boxed("a", cores=quota)):
        assert counted(fleet(request)) == [threads]


@pytest.mark.parametrize(("cores", "threads"), [(1.0, 1), (2.0, 2), (2.5, 2), (64.0, 64)])
def test_a_device_without_a_quota_gets_its_cores(cores: float, threads: int) -> None:
    """A device without a quota of cores gets one thread per core, as process and as container."""
    for request in (asked("a"), boxed("a"), asked("a", memory_bytes=10)):
        assert counted(fleet(request), cores) == [threads]


def test_devices_of_one_machine_share_what_quotas_leave_of_its_cores() -> None:
    """Devices without a quota divide the cores that quotas leave, at least one each, per machine."""
    assert counted(fleet(asked("a"), asked("b"))) == [2, 2]
    assert counted(fleet(asked("a"), asked("b"), asked("c"))) == [1, 1, 1]
    assert counted(fleet(asked("a"), asked("b", cores=2.5))) == [1, 2]
    assert counted(fleet(*(asked(name) for name in "abcdef"))) == [1] * 6
    apart = build_devices(fleet(asked("a"), asked("b")), {"a": facts(), "b": facts(machine="n")})
    assert [device.threads for device in apart] == [4, 4]


def test_a_device_on_a_gpu_takes_no_cores_from_others() -> None:
    """A device on a GPU gets one thread and leaves all cores to others."""
    gpu = Accelerator(name="H", memory_bytes=80)
    assert counted(fleet(asked("a", "cuda:0"), asked("b", "cpu")), accelerators=(gpu,)) == [1, 4]


def test_requested_threads() -> None:
    """A requested number of threads is used, and refused above the quota or machine with both numbers."""
    assert counted(fleet(DeviceRequest(name="a", threads=3), asked("b"))) == [3, 2]
    assert counted(fleet(DeviceRequest(name="a", threads=1, emulate=Emulate(cores=2.0)))) == [1]
    with pytest.raises(Refused, match=r"device a: threads is 5 but its machine has 4 cores; ask for at most 4"):
        counted(fleet(DeviceRequest(name="a", threads=5)))
    with pytest.raises(Refused, match=r"device a: threads is 2 but its quota has 0.5 cores; ask for at most 1"):
        counted(fleet(DeviceRequest(name="a", threads=2, emulate=Emulate(cores=0.5))))
    with pytest.raises(Refused, match="threads"):
        DeviceRequest(name="a", threads=0)


def test_a_simulated_fleet_is_built_from_its_request() -> None:
    """Memory, speeds and directed links come from the request, and no agent is started."""
    fleet = discovered(fleet_request())
    assert fleet.simulated == ("a", "b")
    assert [device.memory_bytes for device in fleet.devices] == [4_000, 8_000]
    assert (fleet.link("a", "b").bytes_per_s, fleet.link("a", "b").latency_s) == (12_500_000, 1e-3)
    assert (fleet.link("b", "a").bytes_per_s, fleet.link("b", "a").latency_s) == (1_000_000, 0)
    assert fleet.device("a").fingerprint != fleet.device("b").fingerprint
    assert json_io.parse(Fleet, json_io.text(fleet), "fleet") == fleet


def test_a_real_device_is_written_as_before() -> None:
    """The JSON of a real device does not mention simulation, so digests stay valid."""
    device = Device(name="a", memory_bytes=1, cores=1, fingerprint="f")
    assert "simulated" not in json_io.text(device)


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
    """Invalid simulations are refused in one sentence that names the device or key."""
    with pytest.raises(Refused, match=said):
        fleet_request(**changes)
