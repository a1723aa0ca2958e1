"""Device side of joining: exposes its engine to hosts that know the token, until it is told to end."""

import os
import queue
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from containers import engine_api
from fleetune.contracts.fleet import Engine
from fleetune.discovery.joining import certificates, introduction
from fleetune.discovery.joining.host_session import DeviceIdentity, HostSession
from fleetune.discovery.joining.introduction import Introduction, check_joining_name
from fleetune.discovery.joining.network import AnnouncedHost, LocalNetwork, browse_hosts, listening_sockets
from fleetune.discovery.joining.tls_proxy import TlsProxy
from fleetune.discovery.joining.token import derive_keys, read_token
from fleetune.errors import FleetuneError, Refused

POLL_S = 0.2
MAX_HOSTS = 16
"""Maximum number of host sessions, since anybody can announce hosts; the oldest one without admission is dropped."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinOptions:
    """Options of `fleetune join`."""

    name: str
    token_file: Path
    engine: str
    """Unix socket of the engine of this machine."""
    host: tuple[str, int] | None = None
    """Address and port of the host; None: hosts found by mDNS."""


def find_local_engine(asked: str | None, environment: Mapping[str, str]) -> engine_api.EngineInfo:
    """Find a running engine of this machine: `asked` (unix:///PATH), else the one that the docker command would use.

    Raises Refused for another machine's engine, and if no engine answers.
    """
    if asked is not None and not asked.startswith("unix:///"):
        raise Refused(f"--engine {asked}: a device joins with an engine of its own machine; write unix:///PATH")
    try:
        return engine_api.find_engine(environment if asked is None else {"DOCKER_HOST": asked})
    except engine_api.EngineUnavailable as error:
        raise Refused(f"no engine answers {error}; run make engine, or name yours: --engine unix:///PATH") from None


def serve(
    options: JoinOptions, say: Callable[[str], None], ended: threading.Event, network: LocalNetwork | None = None
) -> None:
    """Expose the engine and introduce the device to all hosts that appear, until `ended` is set.

    `say` receives a sentence for every event. Raises Refused for an invalid name, token or listening address.
    """
    here = network or LocalNetwork()
    check_joining_name(options.name)
    keys = derive_keys(read_token(options.token_file))
    facts = introduction.query_engine_socket(options.engine)
    server, client = certificates.issue_credentials(here.addresses, here.now())
    context = certificates.server_context(server)
    with TlsProxy(listening_sockets(here), options.engine, context) as proxy, _hosts(options, here) as hosts:

        def introduce(own: str, answer_to: str) -> Introduction:
            credentials = {"ca": client.ca, "cert": client.cert, "key": client.key}
            address = f"tcp://{own}:{proxy.port}"
            return Introduction(name=options.name, address=address, answer_to=answer_to, facts=facts, **credentials)

        say(f"device {options.name}: engine {facts.version}, {facts.cores} cores, {facts.memory_bytes / 1e9:.1f} GB")
        say(
            f"its engine is open at port {proxy.port} of {', '.join(here.addresses)} until Ctrl-C, for at most "
            f"{certificates.VALID.days} days, to hosts with the same token: whoever has the token can use this "
            "machine's engine, and by it the whole machine"
        )
        _serve_hosts(hosts, DeviceIdentity(keys=keys, introduce=introduce, network=here, say=say), ended)
    _remove_leftovers(options.engine, [f"tcp://{own}:{proxy.port}" for own in here.addresses], say)
    say("this device has left: its engine is closed to others again")


def _remove_leftovers(engine: str, addresses: Iterable[str], say: Callable[[str], None]) -> None:
    """Remove what hosts created on this engine through `addresses`, where they can no longer reach it."""
    from fleetune.launching.docker import cleanup  # the engine's client is slow to import
    from fleetune.launching.docker.engine_client import connect

    try:
        with closing(connect(Engine(name="this-machine", address=f"unix://{os.path.abspath(engine)}"))) as client:
            for address in addresses:
                cleanup.remove_by_address(client, address)
    except FleetuneError as error:
        say(f"containers, networks or volumes that hosts left on this engine could not be removed: {error}")


def _serve_hosts(hosts: "queue.SimpleQueue[AnnouncedHost]", device: DeviceIdentity, ended: threading.Event) -> None:
    """Keep a session with every announced host until `ended` is set."""
    sessions: dict[str, tuple[AnnouncedHost, HostSession]] = {}
    try:
        while not ended.is_set():
            try:
                host = hosts.get(timeout=POLL_S)
            except queue.Empty:
                host = None
            if host is not None:
                _update_sessions(sessions, host, device)
            for _, session in sessions.values():
                session.poll()
    finally:
        for _, session in sessions.values():
            session.close()


def _update_sessions(
    sessions: dict[str, tuple[AnnouncedHost, HostSession]], host: AnnouncedHost, device: DeviceIdentity
) -> None:
    if host.name in sessions:
        if sessions[host.name][0] == host:
            return
        sessions.pop(host.name)[1].close()
        if not host.addresses:
            device.say(f"host {host.name} listens no more")
    if not host.addresses:
        return
    if len(sessions) >= MAX_HOSTS:
        not_admitted = [name for name, (_, session) in sessions.items() if not session.admitted]
        if not not_admitted:
            return
        sessions.pop(not_admitted[0])[1].close()
    sessions[host.name] = host, HostSession(host, device)


@contextmanager
def _hosts(options: JoinOptions, here: LocalNetwork) -> Iterator["queue.SimpleQueue[AnnouncedHost]"]:
    if options.host is None:
        with browse_hosts(here.addresses) as hosts:
            yield hosts
    else:
        one: queue.SimpleQueue[AnnouncedHost] = queue.SimpleQueue()
        one.put(AnnouncedHost("{}:{}".format(*options.host), (options.host,)))
        yield one
