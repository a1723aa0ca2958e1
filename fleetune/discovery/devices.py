"""Devices of a fleet, built from the fleet request and the measured machine facts; and simulated fleets."""

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import permutations

from fleetune.contracts import json_io
from fleetune.contracts.fleet import DOCKER, Device, Fleet, Link, Machine, NetworkSpec, SimulatedDevice
from fleetune.contracts.fleet_request import DeviceRequest, FleetRequest
from fleetune.contracts.record import record
from fleetune.discovery.machine import MachineFacts
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
    for requested in request.devices:
        found, target = facts[requested.name], targets[requested.name]
        _check_quota(requested.name, "emulate.cores", requested.emulate.cores, found.cores)
        _check_quota(requested.name, "emulate.memory_bytes", requested.emulate.memory_bytes, target.memory_bytes)
        emulated = requested.emulate.cores is not None or requested.emulate.memory_bytes is not None
        cores = requested.emulate.cores or found.cores
        memory_bytes = requested.emulate.memory_bytes or target.memory_bytes // pools.count(target.memory_pool)
        made.append(
            Device(
                name=requested.name,
                memory_bytes=memory_bytes,
                cores=cores,
                threads=counts[requested.name],
                accelerator=target.accelerator,
                accelerator_name=_name(target.accelerator, found),
                launcher=requested.launcher,
                engine=requested.engine,
                emulated=emulated,
                fingerprint=fingerprint(
                    found,
                    target.accelerator,
                    cores,
                    counts[requested.name],
                    requested.emulate.memory_bytes or target.memory_bytes,
                ),
            )
        )
    return tuple(made)


def fingerprint(found: MachineFacts, accelerator: str, cores: float, threads: int, memory_bytes: int) -> str:
    """Hash of hardware, software and limits, 16 hex digits; equal for identical devices."""
    stable = {key: value for key, value in json_io.dump(found).items() if key != "machine"}
    text = json.dumps([stable, accelerator, cores, threads, memory_bytes], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def shared_machines(names: Sequence[str], facts: Mapping[str, MachineFacts]) -> tuple[Machine, ...]:
    """Return the machines with several of these devices, in the order of their first ones."""
    by: dict[str, list[str]] = {}
    for name in names:
        by.setdefault(facts[name].machine, []).append(name)
    return tuple(
        Machine(cores=facts[held[0]].machine_cores, devices=tuple(held)) for held in by.values() if len(held) > 1
    )


def oversubscription_notes(request: FleetRequest, facts: Mapping[str, MachineFacts]) -> list[str]:
    """Return a sentence for every machine whose devices request more cores in all than it has."""
    facts = _available(request, facts)
    sentences = []
    for machine in sorted({facts[requested.name].machine for requested in request.devices}):
        sharing = [requested for requested in request.devices if facts[requested.name].machine == machine]
        cores = facts[sharing[0].name].cores
        promised = sum(requested.emulate.cores or 0.0 for requested in sharing)
        if promised > cores:
            names = ", ".join(requested.name for requested in sharing)
            sentences.append(
                f"devices {names} share a machine of {cores:g} cores but are promised {promised:g} in all: "
                "they will run slower than forecast; lower emulate.cores"
            )
    return sentences


def _available(request: FleetRequest, facts: Mapping[str, MachineFacts]) -> dict[str, MachineFacts]:
    """Capacity of each device; for a container that of the whole machine, since the container sees only its limits."""
    return {
        requested.name: replace(found, cores=found.machine_cores, memory_bytes=found.machine_memory_bytes)
        if requested.launcher == DOCKER
        else found
        for requested in request.devices
        for found in (facts[requested.name],)
    }


def _compute_targets(request: FleetRequest, facts: Mapping[str, MachineFacts]) -> dict[str, ComputeTarget]:
    """Compute target of each device; devices with accelerator `auto` take their machine's GPUs in turn."""
    assigned_gpus: dict[str, int] = {}
    targets = {}
    for requested in request.devices:
        found = facts[requested.name]
        accelerator = requested.accelerator
        if accelerator == AUTO:
            count = len(found.accelerators)
            accelerator = f"cuda:{assigned_gpus.get(found.machine, 0) % count}" if count else CPU
            assigned_gpus[found.machine] = assigned_gpus.get(found.machine, 0) + 1
        targets[requested.name] = ComputeTarget(
            accelerator=accelerator, machine=found.machine, memory_bytes=_memory_bytes(requested, accelerator, found)
        )
    return targets


def _name(accelerator: str, found: MachineFacts) -> str:
    names = {f"cuda:{index}": each.name for index, each in enumerate(found.accelerators)}
    return names.get(accelerator, "")


def _memory_bytes(requested: DeviceRequest, accelerator: str, found: MachineFacts) -> int:
    if accelerator == CPU:
        return found.memory_bytes
    available = {f"cuda:{index}": each.memory_bytes for index, each in enumerate(found.accelerators)}
    if accelerator not in available:
        raise Refused(
            f"device {requested.name}: accelerator {accelerator} is requested, and its machine has "
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
        requested.name: _requested_threads(requested, facts[requested.name])
        or _default_threads(requested, request, facts, accelerators)
        for requested in request.devices
    }


def _requested_threads(requested: DeviceRequest, found: MachineFacts) -> int | None:
    cores = requested.emulate.cores or found.cores
    if requested.threads is not None and requested.threads > max(1, math.floor(cores)):
        whose = "its quota" if requested.emulate.cores else "its machine"
        raise Refused(
            f"device {requested.name}: threads is {requested.threads} but {whose} has {cores:.16g} cores; "
            f"ask for at most {max(1, math.floor(cores))}"
        )
    return requested.threads


def _default_threads(
    requested: DeviceRequest, request: FleetRequest, facts: Mapping[str, MachineFacts], accelerators: Mapping[str, str]
) -> int:
    if accelerators[requested.name] != CPU:
        return 1
    if requested.emulate.cores is not None:
        return max(1, math.floor(requested.emulate.cores))
    machine = facts[requested.name].machine
    on_cpu = [other for other in request.devices if accelerators[other.name] == CPU]
    neighbours = [other for other in on_cpu if facts[other.name].machine == machine]
    quotas = sum(other.emulate.cores or 0.0 for other in neighbours)
    sharing = sum(other.emulate.cores is None for other in neighbours)
    return max(1, math.floor((facts[requested.name].cores - quotas) / sharing))


def simulated_fleet(request: FleetRequest) -> Fleet:
    """Build the fleet of a request whose devices are all simulated; starts and measures nothing."""
    assert request.links is not None, "a request of simulated devices has links"
    names = [device.name for device in request.devices]
    return Fleet(
        devices=tuple(
            _simulated_device(requested.name, requested.simulated)
            for requested in request.devices
            if requested.simulated
        ),
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
    spec = links.link(source, target)
    return Link(source=source, target=target, latency_s=spec.latency_s, bytes_per_s=spec.bytes_per_s)
