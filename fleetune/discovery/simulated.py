"""A fleet that exists only as numbers: its devices and links are as the request says."""

import hashlib
from itertools import permutations

from fleetune.contracts import wire
from fleetune.contracts.fleet import Device, Fleet, Link, SimulatedDevice
from fleetune.contracts.fleet_request import FleetRequest
from fleetune.contracts.link_spec import NetworkSpec


def simulated_fleet(request: FleetRequest) -> Fleet:
    """The fleet of a request whose devices are all simulated; nothing is started or measured."""
    assert request.links is not None, "a request of simulated devices has links"
    names = [device.name for device in request.devices]
    return Fleet(
        devices=tuple(_device(asked.name, asked.simulated) for asked in request.devices if asked.simulated),
        links=tuple(_link(request.links, source, target) for source, target in permutations(names, 2)),
    )


def _device(name: str, simulated: SimulatedDevice) -> Device:
    """One core, that of its one worker; the fingerprint is a hash of what was stated."""
    return Device(
        name=name,
        memory_bytes=simulated.memory_bytes,
        cores=1.0,
        fingerprint=hashlib.sha256(wire.text(simulated).encode()).hexdigest()[:16],
        simulated=simulated,
    )


def _link(links: NetworkSpec, source: str, target: str) -> Link:
    way = links.link(source, target)
    return Link(source=source, target=target, latency_s=way.latency_s, bytes_per_s=way.bytes_per_s)
