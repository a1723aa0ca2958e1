"""Discovery of a fleet: starts an agent per device, collects facts, probes the links and builds the fleet."""

import secrets
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from fleetune.contracts import json_io
from fleetune.contracts.fleet import Device, Fleet
from fleetune.contracts.fleet_request import DeviceRequest, FleetRequest
from fleetune.contracts.task import Progress
from fleetune.discovery.agent_pool import STAGE, AgentHello, AgentPool, AgentTask, DiscoveryTimeLimits
from fleetune.discovery.devices import build_devices, oversubscription_notes, shared_machines, simulated_fleet
from fleetune.discovery.link_measurement import Expectations, LinkProber, ProbeEnd
from fleetune.discovery.machine import MachineFacts
from fleetune.discovery.measurement import Measurement, link_deviations
from fleetune.launching import Command, Sites
from fleetune.links.authentication import KeyPair, new_key_pair
from fleetune.links.endpoint import Endpoint, Listen

DEFAULT_LIMITS = DiscoveryTimeLimits()


def discover(
    request: FleetRequest,
    sites: Sites,
    progress: Progress,
    note: Callable[[str], None],
    limits: DiscoveryTimeLimits = DEFAULT_LIMITS,
    stored: Fleet | None = None,
) -> Measurement:
    """Measure the requested devices and the links between them, both ways and one at a time.

    Measurements that deviate from `stored`, the fleet of an earlier run, are repeated before they are accepted.

    Starts one agent per device at its site and ends them all. Raises Refused if a device requests more than its
    machine has, and TryAgain with the device and the end of its log if an agent does not answer. Notes a sentence for
    every emulated link that deviates from its request. A simulated fleet is built from the request alone.
    """
    if request.simulated:
        return Measurement(fleet=simulated_fleet(request))
    keys = {name: new_key_pair() for name in (STAGE, *(device.name for device in request.devices))}
    allowed = {name: pair.public for name, pair in keys.items()}
    run = secrets.token_hex(8)
    with (
        tempfile.TemporaryDirectory(prefix="fleetune-discover-") as folder,
        Endpoint(STAGE, keys[STAGE], allowed, run=run, listen=Listen(bind=sites.listen), note=note) as endpoint,
    ):
        agents = AgentPool(endpoint, run, limits, note)
        try:
            for requested in request.devices:
                _start(agents, requested, keys[requested.name], sites, Path(folder))
            measured = _measure_fleet(agents, request, stored, progress)
            agents.shutdown()
        finally:
            for job in agents.jobs.values():
                job.stop()
    return measured


def _start(agents: AgentPool, requested: DeviceRequest, keys: KeyPair, sites: Sites, logs: Path) -> None:
    """Start the agent of one device."""
    allowed = agents.endpoint.allowed
    task = AgentTask(
        run=agents.run,
        device=requested.name,
        accelerator=requested.accelerator,
        public=keys.public,
        secret=keys.secret,
        allowed=allowed,
        stage_address=agents.endpoint.address,
        door=sites.listen_settings(requested.name),
        idle_s=agents.limits.answer_s * (1 + len(allowed) ** 2),  # the agent idles while others are probed
        answer_s=agents.limits.answer_s,
    )
    log = logs / f"{requested.name}.log"
    command = Command(module="fleetune.discovery.agent", first_line=task.line(), watched=False, log=log)
    if requested.emulate.memory_bytes is not None:
        agents.memory_bytes[requested.name] = requested.emulate.memory_bytes
    agents.add(requested.name, sites.launcher(requested.name).start(command))


def _measure_fleet(agents: AgentPool, request: FleetRequest, stored: Fleet | None, progress: Progress) -> Measurement:
    """Collect the facts of all devices, then have them measure their links under their emulated limits."""
    facts = _receive_facts(agents, [requested.name for requested in request.devices], progress)
    found = build_devices(request, facts)
    for sentence in oversubscription_notes(request, facts):
        agents.note(sentence)
    for job in agents.jobs.values():
        job.limit_cpu()
    prober = LinkProber(agents, Expectations(requested=request.links, stored=stored, tolerance=request.tolerance))
    ends = tuple(_probe_end(device, facts) for device in found)
    links = prober.measure_links(ends, progress)
    cpu_s_per_byte = prober.link_cpu_s_per_byte(ends)
    for sentence in link_deviations(request.links, links) if request.links else ():
        agents.note(sentence)
    fleet = Fleet(
        devices=tuple(replace(device, link_cpu_s_per_byte=cpu_s_per_byte[device.name]) for device in found),
        links=tuple(links),
        engines=request.engines,
        image=request.image,
        emulated_links=request.links,
        machines=shared_machines([device.name for device in found], facts),
    )
    return Measurement(fleet=fleet, links=tuple(prober.evidence))


def _probe_end(device: Device, facts: dict[str, MachineFacts]) -> ProbeEnd:
    return ProbeEnd(name=device.name, machine=facts[device.name].machine, memory_bytes=device.memory_bytes)


def _receive_facts(agents: AgentPool, names: list[str], progress: Progress) -> dict[str, MachineFacts]:
    """Receive the hello of every agent, then have all agents connect to each other; device -> facts."""
    hellos: dict[str, AgentHello] = {}
    while len(hellos) < len(names):
        progress("finding devices", len(hellos), len(names), "devices")
        received = agents.receive("here", set(names) - hellos.keys())
        name = received.sender
        hellos[name] = json_io.load(AgentHello, received.message.header, f"facts of {name}")
        endpoint = agents.endpoint
        endpoint.connect(name, hellos[name].address, endpoint.allowed[name])
    for name in names:
        agents.send(name, "peers", {peer: hellos[peer].address for peer in names if peer != name})
    waiting = set(names)
    while waiting:
        waiting.remove(agents.receive("ready", waiting).sender)
    progress("finding devices", len(names), len(names), "devices")
    return {name: hellos[name].facts for name in names}
