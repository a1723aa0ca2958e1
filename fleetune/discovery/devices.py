"""Devices of a fleet, built from the fleet request and the measured machine facts; and simulated fleets."""

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import replace
from itertools import permutations

from fleetune.contracts import json_io
from fleetune.contracts.fleet import DOCKER, Device, Fleet, Link, NetworkSpec, SimulatedDevice
from fleetune.contracts.fleet_request import DeviceRequest, FleetRequest
from fleetune.contracts.record import record
from fleetune.discovery.machine_facts import MachineFacts
from fleetune.errors import Refused

AUTO, CPU = "auto", "cpu"


@record
class ComputeTarget:
    """Accelerator or CPU that a device computes on, with the memory that its devices share."""

    accelerator: str
    machine: str
    memory_bytes: int

    @property
    def memory_pool(self) -> tuple[str, str]:
        """Key of the shared memory; devices with equal keys divide it."""
        return self.machine, self.accelerator


def build_devices(request: FleetRequest, facts: Mapping[str, MachineFacts]) -> tuple[Device, ...]:
    """Build one Device per requested device, in the order of the request.

    A device without emulated memory gets an equal share of its machine's (or container's) or GPU's memory. Cores are
    those of the machine unless emulated; threads follow from them (`thread_counts`). Raises Refused for a quota above
    the machine's capacity.
    """
    facts = _available(request, facts)
    targets = _compute_targets(request, facts)
    pools = [target.memory_pool for target in targets.values()]
    counts = thread_counts(request, facts, {name: target.accelerator for name, target in targets.items()})
    made = []
    for asked in request.devices:
        found, target = facts[asked.name], targets[asked.name]
        _check_quota(asked.name, "emulate.cores", asked.emulate.cores, found.cores)
        _check_quota(asked.name, "emulate.memory_bytes", asked.emulate.memory_bytes, target.memory_bytes)
        emulated = asked.emulate.cores is not None or asked.emulate.memory_bytes is not None
        cores = asked.emulate.cores or found.cores
        memory_bytes = asked.emulate.memory_bytes or target.memory_bytes // pools.count(target.memory_pool)
        made.append(
            Device(
                name=asked.name,
                memory_bytes=memory_bytes,
                cores=cores,
                threads=counts[asked.name],
                accelerator=target.accelerator,
                launcher=asked.launcher,
                engine=asked.engine,
                emulated=emulated,
                fingerprint=fingerprint(
                    found,
                    target.accelerator,
                    cores,
                    counts[asked.name],
                    asked.emulate.memory_bytes or target.memory_bytes,
                ),
            )
        )
    return tuple(made)


def fingerprint(found: MachineFacts, accelerator: str, cores: float, threads: int, memory_bytes: int) -> str:
    """Hash of hardware, software and limits, 16 hex digits; equal for identical devices."""
    stable = {key: value for key, value in json_io.dump(found).items() if key != "machine"}
    text = json.dumps([stable, accelerator, cores, threads, memory_bytes], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def oversubscription_notes(request: FleetRequest, facts: Mapping[str, MachineFacts]) -> list[str]:
    """Return a sentence for every machine whose devices request more cores in all than it has."""
    facts = _available(request, facts)
    sentences = []
    for machine in sorted({facts[asked.name].machine for asked in request.devices}):
        sharing = [asked for asked in request.devices if facts[asked.name].machine == machine]
        cores = facts[sharing[0].name].cores
        promised = sum(asked.emulate.cores or 0.0 for asked in sharing)
        if promised > cores:
            names = ", ".join(asked.name for asked in sharing)
            sentences.append(
                f"devices {names} share a machine of {cores:g} cores but are promised {promised:g} in all: "
                "they will run slower than forecast; lower emulate.cores"
            )
    return sentences


def _available(request: FleetRequest, facts: Mapping[str, MachineFacts]) -> dict[str, MachineFacts]:
    """Capacity of each device; for a container that of the whole machine, since the container sees only its limits."""
    return {
        asked.name: replace(found, cores=found.machine_cores, memory_bytes=found.machine_memory_bytes)
        if asked.launcher == DOCKER
        else found
        for asked in request.devices
        for found in (facts[asked.name],)
    }


def _compute_targets(request: FleetRequest, facts: Mapping[str, MachineFacts]) -> dict[str, ComputeTarget]:
    """Compute target of each device; devices with accelerator `auto` take their machine's GPUs in turn."""
    assigned_gpus: dict[str, int] = {}
    targets = {}
    for asked in request.devices:
        found = facts[asked.name]
        accelerator = asked.accelerator
        if accelerator == AUTO:
            count = len(found.accelerators)
            accelerator = f"cuda:{assigned_gpus.get(found.machine, 0) % count}" if count else CPU
            assigned_gpus[found.machine] = assigned_gpus.get(found.machine, 0) + 1
        targets[asked.name] = ComputeTarget(
            accelerator=accelerator, machine=found.machine, memory_bytes=_memory_bytes(asked, accelerator, found)
        )
    return targets


def _memory_bytes(asked: DeviceRequest, accelerator: str, found: MachineFacts) -> int:
    if accelerator == CPU:
        return found.memory_bytes
    available = {f"cuda:{index}": each.memory_bytes for index, each in enumerate(found.accelerators)}
    if accelerator not in available:
        raise Refused(
            f"device {asked.name}: accelerator {accelerator} was asked for, its machine has "
            f"{', '.join(available) or 'none'}; choose one of these, auto or cpu"
        )
    return available[accelerator]


def _check_quota(device: str, key: str, quota: float | None, available: float) -> None:
    """Raise Refused for a quota above what the device's machine has."""
    if quota is not None and quota > available:
        raise Refused(
            f"device {device}: {key} is {quota:.16g} but its machine has {available:.16g}; ask for at most that"
        )


def thread_counts(
    request: FleetRequest, facts: Mapping[str, MachineFacts], accelerators: Mapping[str, str]
) -> dict[str, int]:
    """device -> threads to compute with, from the capacity (`facts`) and accelerator of each device.

    A device with a quota of q cores gets max(1, floor(q)): more threads would wait for each other for seconds while
    the kernel throttles some of them. Devices without a quota divide the remaining cores of their machine. A device on
    a GPU gets one thread. A requested number of threads takes precedence; Refused above the quota or the machine's
    cores.
    """
    return {
        asked.name: _requested_threads(asked, facts[asked.name])
        or _default_threads(asked, request, facts, accelerators)
        for asked in request.devices
    }


def _requested_threads(asked: DeviceRequest, found: MachineFacts) -> int | None:
    cores = asked.emulate.cores or found.cores
    if asked.threads is not None and asked.threads > max(1, math.floor(cores)):
        whose = "its quota" if asked.emulate.cores else "its machine"
        raise Refused(
            f"device {asked.name}: threads is {asked.threads} but {whose} has {cores:.16g} cores; "
            f"ask for at most {max(1, math.floor(cores))}"
        )
    return asked.threads


def _default_threads(
    asked: DeviceRequest, request: FleetRequest, facts: Mapping[str, MachineFacts], accelerators: Mapping[str, str]
) -> int:
    if accelerators[asked.name] != CPU:
        return 1
    if asked.emulate.cores is not None:
        return max(1, math.floor(asked.emulate.cores))
    machine = facts[asked.name].machine
    on_cpu = [other for other in request.devices if accelerators[other.name] == CPU]
    neighbours = [other for other in on_cpu if facts[other.name].machine == machine]
    quotas = sum(other.emulate.cores or 0.0 for other in neighbours)
    sharing = sum(other.emulate.cores is None for other in neighbours)
    return max(1, math.floor((facts[asked.name].cores - quotas) / sharing))


def simulated_fleet(request: FleetRequest) -> Fleet:
    """Build the fleet of a request whose devices are all simulated; starts and measures nothing."""
    assert request.links is not None, "a request of simulated devices has links"
    names = [device.name for device in request.devices]
    return Fleet(
        devices=tuple(_simulated_device(asked.name, asked.simulated) for asked in request.devices if asked.simulated),
        links=tuple(_link(request.links, source, target) for source, target in permutations(names, 2)),
    )


def _simulated_device(name: str, simulated: SimulatedDevice) -> Device:
    """Simulated device with one core; its fingerprint is a hash of the stated properties."""
    return Device(
        name=name,
        memory_bytes=simulated.memory_bytes,
        cores=1.0,
        fingerprint=hashlib.sha256(json_io.text(simulated).encode()).hexdigest()[:16],
        simulated=simulated,
    )


def _link(links: NetworkSpec, source: str, target: str) -> Link:
    way = links.link(source, target)
    return Link(source=source, target=target, latency_s=way.latency_s, bytes_per_s=way.bytes_per_s)
