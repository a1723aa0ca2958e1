"""The whole of discovery: start the agents, hear what they are, probe the links, make the fleet."""

import secrets
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from fleetune.contracts import wire
from fleetune.contracts.fleet import Device, Fleet
from fleetune.contracts.fleet_request import DeviceRequest, FleetRequest
from fleetune.contracts.task import Progress
from fleetune.discovery.assemble import crowded, devices
from fleetune.discovery.conversation import Conversation, Limits
from fleetune.discovery.emulation import deviations
from fleetune.discovery.facts import Facts
from fleetune.discovery.probing import End, Expected, Probing
from fleetune.discovery.protocol import STAGE, AgentTask, Here
from fleetune.discovery.simulated import simulated_fleet
from fleetune.launching import Command, Sites
from fleetune.links.endpoint import Endpoint, Listen
from fleetune.links.keys import KeyPair, new_key_pair

USUAL = Limits()


def discover(
    request: FleetRequest,
    sites: Sites,
    progress: Progress,
    note: Callable[[str], None],
    limits: Limits = USUAL,
    stored: Fleet | None = None,
) -> Fleet:
    """What the requested devices are, and their links both ways, measured one at a time.

    Whatever is not as in `stored`, the fleet as an earlier run found it, is measured again before it is believed.

    Starts one agent per device at its site and ends them all. Refused when a device asks for more than its machine
    has; TryAgain, naming the device and the end of its log, when one does not answer. A sentence is noted for every
    emulated link that is not as asked. A simulated fleet is as its request says, and nothing is started.
    """
    if request.simulated:
        return simulated_fleet(request)
    keys = {name: new_key_pair() for name in (STAGE, *(device.name for device in request.devices))}
    allowed = {name: pair.public for name, pair in keys.items()}
    run = secrets.token_hex(8)
    with (
        tempfile.TemporaryDirectory(prefix="fleetune-discover-") as folder,
        Endpoint(STAGE, keys[STAGE], allowed, run=run, listen=Listen(bind=sites.listen), note=note) as endpoint,
    ):
        conversation = Conversation(endpoint, run, limits, note)
        try:
            for asked in request.devices:
                _start(conversation, asked, keys[asked.name], sites, Path(folder))
            fleet = _talk(conversation, request, stored, progress)
            conversation.end()
        finally:
            for job in conversation.jobs.values():
                job.stop()
    return fleet


def _start(conversation: Conversation, asked: DeviceRequest, keys: KeyPair, sites: Sites, logs: Path) -> None:
    """One device's agent."""
    allowed = conversation.endpoint.allowed
    task = AgentTask(
        run=conversation.run,
        device=asked.name,
        accelerator=asked.accelerator,
        public=keys.public,
        secret=keys.secret,
        allowed=allowed,
        stage_address=conversation.endpoint.address,
        door=sites.door(asked.name),
        idle_s=conversation.limits.answer_s * (1 + len(allowed) ** 2),  # others are probed meanwhile
    )
    command = Command(module="fleetune.discovery.agent", first_line=task.line(), log=logs / f"{asked.name}.log")
    if asked.emulate.memory_bytes is not None:
        conversation.memory_bytes[asked.name] = asked.emulate.memory_bytes
    conversation.jobs[asked.name] = sites.launcher(asked.name).start(command)


def _talk(conversation: Conversation, request: FleetRequest, stored: Fleet | None, progress: Progress) -> Fleet:
    """Hear what the devices are, then have them measure their links within their limits."""
    facts = _introductions(conversation, [asked.name for asked in request.devices], progress)
    found = devices(request, facts)
    for sentence in crowded(request, facts):
        conversation.note(sentence)
    for job in conversation.jobs.values():
        job.hold()
    probing = Probing(conversation, Expected(asked=request.links, stored=stored, tolerance=request.tolerance))
    ends = tuple(_end(device, facts) for device in found)
    links = probing.links(ends, progress)
    cpu_s_per_byte = probing.link_cpu_s_per_byte(ends)
    for sentence in deviations(request.links, links) if request.links else ():
        conversation.note(sentence)
    return Fleet(
        devices=tuple(replace(device, link_cpu_s_per_byte=cpu_s_per_byte[device.name]) for device in found),
        links=tuple(links),
        engines=request.engines,
        image=request.image,
        emulated_links=request.links,
    )


def _end(device: Device, facts: dict[str, Facts]) -> End:
    return End(name=device.name, machine=facts[device.name].machine, memory_bytes=device.memory_bytes)


def _introductions(conversation: Conversation, names: list[str], progress: Progress) -> dict[str, Facts]:
    """Hear from every agent, then let them all connect to each other."""
    here: dict[str, Here] = {}
    while len(here) < len(names):
        progress("finding devices", len(here), len(names), "devices")
        received = conversation.hear("here", set(names) - here.keys())
        name = received.sender
        here[name] = wire.load(Here, received.message.header, f"facts of {name}")
        endpoint = conversation.endpoint
        endpoint.connect(name, here[name].address, endpoint.allowed[name])
    for name in names:
        conversation.say(name, "peers", {peer: here[peer].address for peer in names if peer != name})
    waiting = set(names)
    while waiting:
        waiting.remove(conversation.hear("ready", waiting).sender)
    progress("finding devices", len(names), len(names), "devices")
    return {name: here[name].facts for name in names}
