"""Devices from requests and facts."""

from typing import Any

import pytest

from fleetune.contracts.fleet import DOCKER, Engine
from fleetune.contracts.fleet_request import DeviceRequest, Emulate, FleetRequest
from fleetune.contracts.record import record
from fleetune.discovery.devices import build_devices, oversubscription_notes
from fleetune.discovery.machine_facts import Accelerator, MachineFacts
from fleetune.errors import Refused

GPU = Accelerator(name="H", memory_bytes=80)


def facts(**changes: Any) -> MachineFacts:
    """A machine of 4 cores and 1000 bytes, with changes."""
    usual = {"machine": "m", "cpu": "c", "architecture": "x", "cores": 4.0, "memory_bytes": 1000, "accelerators": ()}
    machine = {"machine_cores": 4.0, "machine_memory_bytes": 1000}
    return MachineFacts(**{**usual, **machine, "python": "3.11", "torch": "2", **changes})


def asked(name: str, accelerator: str = "auto", **emulate: Any) -> DeviceRequest:
    """A request of that name."""
    return DeviceRequest(name=name, accelerator=accelerator, emulate=Emulate(**emulate))


def fleet(*requests: DeviceRequest) -> FleetRequest:
    """A fleet of these."""
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
    """A quota of cores or memory above the machine's names what was asked for and what is there."""
    with pytest.raises(Refused, match=words):
        build_devices(fleet(asked("a", **emulate)), {"a": facts()})


def test_devices_that_may_choose_are_dealt_over_the_gpus() -> None:
    """Three devices on two GPUs take them in turn and share the memory of the one they share."""
    request = fleet(asked("a"), asked("b"), asked("c"), asked("d", "cpu"))
    found = build_devices(request, {name: facts(accelerators=(GPU, GPU)) for name in "abcd"})
    assert [(d.accelerator, d.memory_bytes) for d in found] == [
        ("cuda:0", 40),
        ("cuda:1", 80),
        ("cuda:0", 40),
        ("cpu", 1000),
    ]


def test_a_gpu_that_is_not_there_is_refused_with_those_that_are() -> None:
    """The message lists what the machine has."""
    for there, words in (((), "its machine has none"), ((GPU,), "its machine has cuda:0")):
        with pytest.raises(Refused, match=f"device a: accelerator cuda:3 was asked for, {words}"):
            build_devices(fleet(asked("a", "cuda:3")), {"a": facts(accelerators=there)})


@record
class Change:
    """Something about a machine or a request that may differ."""

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
    """Machine, software and limits matter; a reboot and the device's name do not."""
    (before,) = build_devices(fleet(asked("a")), {"a": facts()})
    (after,) = build_devices(fleet(change.request), {change.request.name: facts(**change.facts)})
    assert (before.fingerprint != after.fingerprint) == change.matters


def boxed(name: str, **emulate: Any) -> DeviceRequest:
    """A request for containers."""
    return DeviceRequest(name=name, launcher=DOCKER, emulate=Emulate(**emulate))


def test_a_container_is_given_of_the_whole_machine() -> None:
    """What it sees of its own limits neither bounds what may be asked for nor changes what it is.

    The kernel rounds a limit of memory down to pages, so exactly what was asked for would look like too much.
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


def test_a_device_says_whose_containers_it_is() -> None:
    """The engine of the request is that of the device."""
    shed = Engine(name="shed", address="ssh://me@shed")
    request = FleetRequest(devices=(DeviceRequest(name="a", launcher=DOCKER, engine="shed"),), engines=(shed,))
    (found,) = build_devices(request, {"a": facts()})
    assert found.engine == "shed"


def test_promising_more_cores_than_there_are_is_said() -> None:
    """Quotas that fit one by one but not together get a sentence per machine."""
    request = fleet(asked("a", cores=3), asked("b", cores=2), asked("c", cores=3))
    there = {"a": facts(), "b": facts(), "c": facts(machine="n")}
    (sentence,) = oversubscription_notes(request, there)
    assert sentence.startswith("devices a, b share a machine of 4 cores but are promised 5")
    assert oversubscription_notes(fleet(asked("a", cores=2), asked("b", cores=2)), there) == []


def test_containers_share_the_cores_of_their_machine() -> None:
    """What containers are promised is compared with the machine, not with what one of them sees."""
    request = fleet(boxed("a", cores=3), boxed("b", cores=2))
    (sentence,) = oversubscription_notes(request, {name: facts(cores=1.0) for name in "ab"})
    assert "share a machine of 4 cores but are promised 5" in sentence
