"""The whole of discovery: start the agents, hear what they are, probe the links, make the fleet."""

import secrets
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import permutations
from pathlib import Path
from typing import Any

from fleetune.contracts import wire
from fleetune.contracts.config.fleet import FleetRequest
from fleetune.contracts.fleet import Fleet, Link
from fleetune.contracts.progress import Progress
from fleetune.contracts.record import record
from fleetune.discovery.assemble import crowded, devices
from fleetune.discovery.facts import Facts
from fleetune.discovery.fit import GOOD_FIT, best_fit
from fleetune.discovery.link_work import LinkProbe, link_cpu_s_per_byte
from fleetune.discovery.protocol import STAGE, AgentTask, Here, Probe, Probed
from fleetune.discovery.simulated import simulated_fleet
from fleetune.errors import TryAgain
from fleetune.launching import Command, Job, Launcher, exit_in_words
from fleetune.links.endpoint import Endpoint
from fleetune.links.keys import KeyPair, new_key_pair
from fleetune.links.message import Message, Received

LOOK_S = 0.1
FAREWELL_S = 5.0


@record
class Limits:
    """How long discovery waits, and how long it measures."""

    answer_s: float = 60.0
    """For one answer of an agent; its start and a look for a GPU included."""
    probe_s: float = 1.0
    """For the sweep over one link; slower links get fewer sizes and repeats."""


USUAL = Limits()


def discover(
    request: FleetRequest,
    launcher: Launcher,
    progress: Progress,
    note: Callable[[str], None],
    limits: Limits = USUAL,
) -> Fleet:
    """What the requested devices are, and their links both ways, measured one at a time.

    Starts one agent per device with `launcher` and ends them all. Refused when a device asks for more than its machine
    has; TryAgain, naming the device and the end of its log, when one does not answer. A simulated fleet is as its
    request says, and nothing is started.
    """
    if request.simulated:
        return simulated_fleet(request)
    names = [device.name for device in request.devices]
    keys = {name: new_key_pair() for name in (STAGE, *names)}
    allowed = {name: pair.public for name, pair in keys.items()}
    run = secrets.token_hex(8)
    with (
        tempfile.TemporaryDirectory(prefix="fleetune-discover-") as folder,
        Endpoint(STAGE, keys[STAGE], allowed, run=run, note=note) as endpoint,
    ):
        conversation = _Conversation(endpoint, limits, note)
        try:
            for asked in request.devices:
                task = _task(asked.name, asked.accelerator, keys[asked.name], allowed, (run, endpoint.address, limits))
                log = Path(folder) / f"{asked.name}.log"
                command = Command(module="fleetune.discovery.agent", first_line=task.line(), log=log)
                conversation.jobs[asked.name] = launcher.start(command)
            facts = _introductions(conversation, names, progress)
            found = devices(request, facts)
            for sentence in crowded(request, facts):
                note(sentence)
            links = tuple(_links(conversation, names, progress, note))
            found = tuple(
                replace(device, link_cpu_s_per_byte=link_cpu_s_per_byte(device.name, conversation.probes))
                for device in found
            )
            conversation.end()
        finally:
            for job in conversation.jobs.values():
                job.stop()
    return Fleet(devices=found, links=links)


def _task(
    device: str, accelerator: str, keys: KeyPair, allowed: dict[str, bytes], of_run: tuple[str, str, Limits]
) -> AgentTask:
    run, address, limits = of_run
    return AgentTask(
        run=run,
        device=device,
        accelerator=accelerator,
        public=keys.public,
        secret=keys.secret,
        allowed=allowed,
        stage_address=address,
        idle_s=limits.answer_s * (1 + len(allowed) ** 2),  # others are probed meanwhile,
    )


class _Conversation:
    """The stage's side: what it says to agents, and answers or the reason why there are none."""

    def __init__(self, endpoint: Endpoint, limits: Limits, note: Callable[[str], None]) -> None:
        self.jobs: dict[str, Job] = {}
        self.probes: list[LinkProbe] = []
        self._note = note
        self.endpoint = endpoint
        self.limits = limits

    def say(self, device: str, kind: str, header: dict[str, Any]) -> None:
        """Send an agent a word."""
        self.endpoint.send(device, Message(kind, header))

    def hear(self, kind: str, waiting_for: set[str]) -> Received:
        """The next message of that kind from one of those; TryAgain when their agent ended or says nothing."""
        deadline_s = time.monotonic() + self.limits.answer_s
        while time.monotonic() < deadline_s:
            received = self.endpoint.receive(LOOK_S)
            if received is not None and received.message.kind == kind and received.sender in waiting_for:
                return received
            for device in sorted(self.jobs):
                code = self.jobs[device].poll()
                if code is not None and received is None:
                    raise self._failure(device, f"its discovery agent {exit_in_words(code)}")
        device = min(waiting_for)
        raise self._failure(device, f"its discovery agent did not say {kind!r} within {self.limits.answer_s:g} s")

    def end(self) -> None:
        """Let the agents end by themselves."""
        for device in self.jobs:
            self.say(device, "end", {})
        for job in self.jobs.values():
            job.wait(FAREWELL_S)

    def _failure(self, device: str, what: str) -> TryAgain:
        log = self.jobs[device].tail(20).strip()
        if log:
            self._note(f"end of the log of device {device}:\n{log}")
        last_words = (log.splitlines() or [""])[-1]
        return TryAgain(f"device {device}: {what}; its last words were {last_words!r}; try again")


def _introductions(conversation: _Conversation, names: list[str], progress: Progress) -> dict[str, Facts]:
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


def _links(
    conversation: _Conversation, names: list[str], progress: Progress, note: Callable[[str], None]
) -> list[Link]:
    """Every ordered pair, one at a time, so that no probe disturbs another."""
    links: list[Link] = []
    pairs = list(permutations(names, 2))
    for done, (source, target) in enumerate(pairs):
        progress("measuring links", done, len(pairs), "links")
        line = best_fit(partial(_probe, conversation, source, target))
        if line.error > GOOD_FIT:
            note(
                f"link {source} -> {target}: no line fits its times better than {line.error:.0%}; is the machine busy?"
            )
        links.append(
            Link(
                source=source,
                target=target,
                latency_s=line.latency_s,
                bytes_per_s=line.bytes_per_s,
                fit_error=line.error,
            )
        )
    if pairs:
        progress("measuring links", len(pairs), len(pairs), "links")
    return links


def _probe(conversation: _Conversation, source: str, target: str) -> Probed:
    conversation.say(source, "probe", wire.dump(Probe(peer=target, budget_s=conversation.limits.probe_s)))
    received = conversation.hear("probed", {source})
    probed = wire.load(Probed, received.message.header, f"probe of link {source} -> {target}")
    conversation.probes.append(LinkProbe(source=source, target=target, probed=probed))
    return probed
