"""The side that joins: it opens its engine to those who know the token, until it is told to end."""

import os
import queue
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from containers import engine_api
from fleetune.contracts.fleet import Engine
from fleetune.discovery.joining import certificates, engine_facts
from fleetune.discovery.joining.acquaintance import Acquaintance, Device
from fleetune.discovery.joining.announcing import Announced, heard
from fleetune.discovery.joining.front import Front
from fleetune.discovery.joining.protocol import Introduction, a_joining_name
from fleetune.discovery.joining.surroundings import Surroundings, listening
from fleetune.discovery.joining.token import pairs, read_token
from fleetune.errors import FleetuneError, Refused

LOOK_S = 0.2
MOST_HOSTS = 16
"""Anybody can announce hosts: no more are knocked at, and the oldest that does not admit this device goes first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Joining:
    """What a device joins with."""

    name: str
    token_file: Path
    engine: str
    """Unix socket of the engine of this machine."""
    host: tuple[str, int] | None = None
    """Where the host is; None: wherever mDNS says that one is."""


def engine_here(asked: str | None, environment: Mapping[str, str]) -> engine_api.EngineInfo:
    """The engine of this machine that answers: `asked` (unix:///PATH), else as the docker command finds it."""
    if asked is not None and not asked.startswith("unix:///"):
        raise Refused(f"--engine {asked}: a device joins with an engine of its own machine; write unix:///PATH")
    try:
        return engine_api.find_engine(environment if asked is None else {"DOCKER_HOST": asked})
    except engine_api.EngineUnavailable as error:
        raise Refused(f"no engine answers {error}; run make engine, or name yours: --engine unix:///PATH") from None


def serve(
    joining: Joining, say: Callable[[str], None], ended: threading.Event, surroundings: Surroundings | None = None
) -> None:
    """Open the engine, introduce the device to every host there is or will be, and return once `ended` is set.

    `say` gets what happens, a sentence each. Refused when name, token or listening address will not do.
    """
    here = surroundings or Surroundings()
    a_joining_name(joining.name)
    keys = pairs(read_token(joining.token_file))
    facts = engine_facts.of_socket(joining.engine)
    server, client = certificates.issue(here.addresses, here.now())
    context = certificates.server_context(server)
    with Front(listening(here), joining.engine, context) as front, _hosts(joining, here) as hosts:

        def introduce(own: str, answer_to: str) -> Introduction:
            papers = {"ca": client.ca, "cert": client.cert, "key": client.key}
            address = f"tcp://{own}:{front.port}"
            return Introduction(name=joining.name, address=address, answer_to=answer_to, facts=facts, **papers)

        say(f"device {joining.name}: engine {facts.version}, {facts.cores} cores, {facts.memory_bytes / 1e9:.1f} GB")
        say(
            f"its engine is open at port {front.port} of {', '.join(here.addresses)} until Ctrl-C, for at most "
            f"{certificates.VALID.days} days, to hosts with the same token: whoever has the token can use this "
            "machine's engine, and by it the whole machine"
        )
        _meet(hosts, Device(keys=keys, introduce=introduce, surroundings=here, say=say), ended)
    _leave_nothing(joining.engine, [f"tcp://{own}:{front.port}" for own in here.addresses], say)
    say("this device has left: its engine is closed to others again")


def _leave_nothing(engine: str, addresses: Iterable[str], say: Callable[[str], None]) -> None:
    """Remove what hosts have made on this engine by its own addresses: they can reach it no longer."""
    from fleetune.launching.docker import cleanup  # the engine's client is slow to import
    from fleetune.launching.docker.engine_client import connect

    try:
        with closing(connect(Engine(name="this-machine", address=f"unix://{os.path.abspath(engine)}"))) as client:
            for address in addresses:
                cleanup.remove_by_address(client, address)
    except FleetuneError as error:
        say(f"what hosts have left on this engine could not be removed: {error}")


def _meet(hosts: "queue.SimpleQueue[Announced]", device: Device, ended: threading.Event) -> None:
    """Get to know hosts as they come, and forget them as they go."""
    known: dict[str, tuple[Announced, Acquaintance]] = {}
    try:
        while not ended.is_set():
            try:
                host = hosts.get(timeout=LOOK_S)
            except queue.Empty:
                host = None
            if host is not None:
                _update(known, host, device)
            for _, acquaintance in known.values():
                acquaintance.look()
    finally:
        for _, acquaintance in known.values():
            acquaintance.close()


def _update(known: dict[str, tuple[Announced, Acquaintance]], host: Announced, device: Device) -> None:
    if host.name in known:
        if known[host.name][0] == host:
            return
        known.pop(host.name)[1].close()
        if not host.places:
            device.say(f"host {host.name} listens no more")
    if not host.places:
        return
    if len(known) >= MOST_HOSTS:
        strangers = [name for name, (_, acquaintance) in known.items() if not acquaintance.admitted]
        if not strangers:
            return
        known.pop(strangers[0])[1].close()
    known[host.name] = host, Acquaintance(host, device)


@contextmanager
def _hosts(joining: Joining, here: Surroundings) -> Iterator["queue.SimpleQueue[Announced]"]:
    if joining.host is None:
        with heard(here.addresses) as hosts:
            yield hosts
    else:
        one: queue.SimpleQueue[Announced] = queue.SimpleQueue()
        one.put(Announced("{}:{}".format(*joining.host), (joining.host,)))
        yield one
