"""From what was asked and what was found to the devices of a fleet."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import replace

from fleetune.contracts import wire
from fleetune.contracts.fleet import DOCKER, Device
from fleetune.contracts.fleet_request import DeviceRequest, FleetRequest
from fleetune.contracts.record import record
from fleetune.discovery.facts import Facts
from fleetune.discovery.threads import CPU, threads
from fleetune.errors import Refused

AUTO = "auto"


@record
class Place:
    """Where a device computes, and how many devices share that place."""

    accelerator: str
    machine: str
    memory_bytes: int

    @property
    def memory_pool(self) -> tuple[str, str]:
        """Devices with the same pool divide one memory."""
        return self.machine, self.accelerator


def devices(request: FleetRequest, facts: Mapping[str, Facts]) -> tuple[Device, ...]:
    """One Device per request, in its order.

    A device that is not emulated gets an equal share of the memory it lives in: that of its machine (or container), or
    of its GPU, divided by the number of devices there. Cores are those of the machine unless emulated, threads follow
    them (`threads`). Refused names a quota above what the machine has.
    """
    facts = _rooms(request, facts)
    places = _places(request, facts)
    pools = [place.memory_pool for place in places.values()]
    counts = threads(request, facts, {name: place.accelerator for name, place in places.items()})
    made = []
    for asked in request.devices:
        found, place = facts[asked.name], places[asked.name]
        _within(asked.name, "emulate.cores", asked.emulate.cores, found.cores)
        _within(asked.name, "emulate.memory_bytes", asked.emulate.memory_bytes, place.memory_bytes)
        emulated = asked.emulate.cores is not None or asked.emulate.memory_bytes is not None
        cores = asked.emulate.cores or found.cores
        memory_bytes = asked.emulate.memory_bytes or place.memory_bytes // pools.count(place.memory_pool)
        made.append(
            Device(
                name=asked.name,
                memory_bytes=memory_bytes,
                cores=cores,
                threads=counts[asked.name],
                accelerator=place.accelerator,
                launcher=asked.launcher,
                engine=asked.engine,
                emulated=emulated,
                fingerprint=fingerprint(
                    found,
                    place.accelerator,
                    cores,
                    counts[asked.name],
                    asked.emulate.memory_bytes or place.memory_bytes,
                ),
            )
        )
    return tuple(made)


def fingerprint(found: Facts, accelerator: str, cores: float, threads: int, memory_bytes: int) -> str:
    """Sixteen hex digits over machine, software and limits; the same for two devices that are alike."""
    lasting = {key: value for key, value in wire.dump(found).items() if key != "machine"}
    text = json.dumps([lasting, accelerator, cores, threads, memory_bytes], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def crowded(request: FleetRequest, facts: Mapping[str, Facts]) -> list[str]:
    """A sentence for every machine whose devices are promised more cores than it has: no forecast can hold there."""
    facts = _rooms(request, facts)
    sentences = []
    for machine in sorted({facts[asked.name].machine for asked in request.devices}):
        here = [asked for asked in request.devices if facts[asked.name].machine == machine]
        has = facts[here[0].name].cores
        promised = sum(asked.emulate.cores or 0.0 for asked in here)
        if promised > has:
            names = ", ".join(asked.name for asked in here)
            sentences.append(
                f"devices {names} share a machine of {has:g} cores but are promised {promised:g} in all: "
                "they will run slower than forecast; lower emulate.cores"
            )
    return sentences


def _rooms(request: FleetRequest, facts: Mapping[str, Facts]) -> dict[str, Facts]:
    """What each device can be given: of a container the whole machine, since the limits it sees are its own."""
    return {
        asked.name: replace(found, cores=found.machine_cores, memory_bytes=found.machine_memory_bytes)
        if asked.launcher == DOCKER
        else found
        for asked in request.devices
        for found in (facts[asked.name],)
    }


def _places(request: FleetRequest, facts: Mapping[str, Facts]) -> dict[str, Place]:
    """Devices that may choose are dealt over their machine's GPUs in turn."""
    dealt: dict[str, int] = {}
    places = {}
    for asked in request.devices:
        found = facts[asked.name]
        accelerator = asked.accelerator
        if accelerator == AUTO:
            count = len(found.accelerators)
            accelerator = f"cuda:{dealt.get(found.machine, 0) % count}" if count else CPU
            dealt[found.machine] = dealt.get(found.machine, 0) + 1
        places[asked.name] = Place(
            accelerator=accelerator, machine=found.machine, memory_bytes=_memory_bytes(asked, accelerator, found)
        )
    return places


def _memory_bytes(asked: DeviceRequest, accelerator: str, found: Facts) -> int:
    if accelerator == CPU:
        return found.memory_bytes
    there = {f"cuda:{index}": each.memory_bytes for index, each in enumerate(found.accelerators)}
    if accelerator not in there:
        raise Refused(
            f"device {asked.name}: accelerator {accelerator} was asked for, its machine has "
            f"{', '.join(there) or 'none'}; choose one of these, auto or cpu"
        )
    return there[accelerator]


def _within(device: str, what: str, asked: float | None, has: float) -> None:
    if asked is not None and asked > has:
        raise Refused(f"device {device}: {what} is {asked:.16g} but its machine has {has:.16g}; ask for at most that")
