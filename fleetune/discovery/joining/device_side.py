"""Device side of joining: opens its engine to hosts that know the token, and introduces itself to each of them.

`serve` keeps a HostSession with every host that is announced or named, until it is told to end.
"""

import errno
import os
import queue
import select
import socket
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from containers import engine_api
from fleetune.contracts import json_io
from fleetune.contracts.fleet import Engine
from fleetune.discovery.joining import credentials, introduction
from fleetune.discovery.joining.credentials import TokenKeys, derive_keys, read_token
from fleetune.discovery.joining.introduction import DEVICE, HOST, JOIN_RUN, Introduction, check_joining_name
from fleetune.discovery.joining.network import AnnouncedHost, LocalNetwork, browse_hosts, listening_sockets
from fleetune.discovery.joining.tls_proxy import TlsProxy
from fleetune.errors import FleetuneError, Refused
from fleetune.formatting import gigabytes
from fleetune.links.endpoint import Endpoint, Listen
from fleetune.links.message import Message

ADMISSION_TIMEOUT_S = 5.0
RETRY_S = 5.0
"""Wait before the next attempt at a host that has not admitted this device."""
CONNECT_TIMEOUT_S = 1.0
HostPort = tuple[str, int]


@dataclass(frozen=True, slots=True)
class DialQueue:
    """First-in first-out queue of sessions, of which one at a time may connect.

    Anybody can announce hosts, and every attempt takes sockets and threads.
    """

    waiting: deque[object] = field(default_factory=deque)

    def take(self, session: object) -> bool:
        """Queue a session if needed, and return whether it is its turn; the turn lasts until it leaves."""
        if not any(each is session for each in self.waiting):
            self.waiting.append(session)
        return self.waiting[0] is session

    def leave(self, session: object) -> None:
        """Remove a session from the queue; safe to repeat."""
        for each in [each for each in self.waiting if each is session]:
            self.waiting.remove(each)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceIdentity:
    """Keys, introduction and network of a device, shared by its host sessions."""

    keys: TokenKeys
    introduce: Callable[[str, str], Introduction]
    """Builds the introduction from the device's address towards a host and the address for the answer."""
    network: LocalNetwork
    say: Callable[[str], None]
    dial_queue: DialQueue = field(default_factory=DialQueue)


class HostSession:
    """Tries a host's addresses, introduces the device once it is admitted, and reconnects when the host restarts.

    Never blocks: the caller calls `poll` repeatedly. All sessions of a device together try one address at a time;
    further open connections are to hosts that have proven to know the token.
    """

    def __init__(self, host: AnnouncedHost, device: DeviceIdentity) -> None:
        self.host, self._device = host, device
        self._addresses: deque[HostPort] = deque(host.addresses)
        """Addresses left to try in this round."""
        self._probe_socket: socket.socket | None = None
        self._endpoint: Endpoint | None = None
        self._admitted = self._introduced = self._listens = False
        self._step_s = device.network.clock()
        """Start of the current step, or end of the wait before the next attempt."""
        self._last_sentence = ""

    def poll(self) -> None:
        """Perform the next step if it is due."""
        now_s = self._device.network.clock()
        if self._admitted:
            self._check_connection(now_s)
        elif self._endpoint is not None:
            self._await_admission(now_s)
        elif self._probe_socket is not None:
            self._await_tcp(now_s)
        elif now_s >= self._step_s and self._device.dial_queue.take(self):
            self._dial(now_s)

    @property
    def admitted(self) -> bool:
        """True while the host admits this device and is connected."""
        return self._admitted

    @property
    def has_socket(self) -> bool:
        """True while an address is tried, or the host is connected."""
        return self._probe_socket is not None or self._endpoint is not None

    def close(self) -> None:
        """Disconnect from the host; safe to repeat."""
        self._device.dial_queue.leave(self)
        if self._probe_socket is not None:
            self._probe_socket.close()
        if self._endpoint is not None:
            self._endpoint.close(linger_s=0)
        self._probe_socket = self._endpoint = None
        self._admitted = False

    def _dial(self, now_s: float) -> None:
        """Start a plain TCP connection, which takes one socket and shows whether anybody listens."""
        self._step_s = now_s
        self._probe_socket = socket.socket(socket.AF_INET, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        if self._probe_socket.connect_ex(self._addresses[0]) not in (0, errno.EINPROGRESS):
            self._next_address(now_s)

    def _await_tcp(self, now_s: float) -> None:
        assert self._probe_socket is not None
        _, answered, _ = select.select([], [self._probe_socket], [], 0)
        if answered and self._probe_socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == 0:
            self._request_admission(now_s)
        elif answered or now_s - self._step_s >= CONNECT_TIMEOUT_S:
            self._next_address(now_s)

    def _request_admission(self, now_s: float) -> None:
        """Start mutual authentication by the token with an address that listens."""
        assert self._probe_socket is not None
        self._probe_socket.close()
        self._probe_socket, self._step_s, self._listens = None, now_s, True
        address, port = self._addresses[0]
        keys = self._device.keys
        listen = Listen(bind=f"tcp://{self._device.network.source_address(address)}:*", max_message_bytes=1 << 10)
        endpoint = Endpoint(
            DEVICE, keys.device, {HOST: keys.host.public}, run=JOIN_RUN, listen=listen, note=lambda _: None
        )
        self._endpoint = endpoint
        try:
            endpoint.connect(HOST, f"tcp://{address}:{port}", keys.host.public)
        except Refused:
            self._next_address(now_s)

    def _await_admission(self, now_s: float) -> None:
        assert self._endpoint is not None
        if self._endpoint.connected(HOST):
            self._admitted = True
            self._device.dial_queue.leave(self)
            self._introduce(self._endpoint)
            self._receive_answers(self._endpoint)
        elif now_s - self._step_s >= ADMISSION_TIMEOUT_S:
            self._next_address(now_s)

    def _check_connection(self, now_s: float) -> None:
        """Read the answers of a connected host; after a disconnect, start over and wait for the next turn."""
        assert self._endpoint is not None
        if self._endpoint.connected(HOST):
            return self._receive_answers(self._endpoint)
        self.close()
        self._addresses, self._step_s, self._listens = deque(self.host.addresses), now_s, False

    def _introduce(self, endpoint: Endpoint) -> None:
        address, port = self._addresses[0]
        own = self._device.network.source_address(address)
        endpoint.send(HOST, Message("here", json_io.dump(self._device.introduce(own, endpoint.address))))
        self._introduced = True
        self._say_once(f"host {self.host.name} at {address}:{port} admits this device, which has introduced itself")

    def _receive_answers(self, endpoint: Endpoint) -> None:
        while (received := endpoint.receive(0)) is not None:
            if received.message.kind == "welcome":
                self._say_once(f"host {self.host.name}: this device has joined its fleet")
            elif received.message.kind == "refused":
                self._say_once(f"host {self.host.name} refuses this device: {received.message.header.get('why')}")

    def _next_address(self, now_s: float) -> None:
        """Give up on an address: queue for the next one, or schedule a retry after the last."""
        self.close()
        self._addresses.popleft()
        self._step_s = now_s
        if not self._addresses:
            self._schedule_retry(now_s)

    def _schedule_retry(self, now_s: float) -> None:
        """Wait before trying all addresses again; silent after an introduction, because then the host simply ended."""
        self._step_s = now_s + RETRY_S
        listens, self._listens, self._addresses = self._listens, False, deque(self.host.addresses)
        if self._introduced:
            return
        if listens:
            self._say_once(f"host {self.host.name} does not admit this device: is its token another?")
        else:
            self._say_once(f"host {self.host.name} does not listen now; this device introduces itself when it does")

    def _say_once(self, sentence: str) -> None:
        if sentence != self._last_sentence:
            self._device.say(sentence)
        self._last_sentence = sentence


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


def find_local_engine(address: str | None, environment: Mapping[str, str]) -> engine_api.EngineInfo:
    """Find a running engine of this machine: `address` (unix:///PATH), else the one that the docker command would use.

    Raises Refused for another machine's engine, and if no engine answers.
    """
    if address is not None and not address.startswith("unix:///"):
        raise Refused(f"--engine {address}: a device joins with an engine of its own machine; write unix:///PATH")
    try:
        return engine_api.find_engine(environment if address is None else {"DOCKER_HOST": address})
    except engine_api.EngineUnavailable as error:
        raise Refused(f"no engine answers {error}; run make engine, or name yours: --engine unix:///PATH") from None


def serve(
    options: JoinOptions, say: Callable[[str], None], ended: threading.Event, network: LocalNetwork | None = None
) -> None:
    """Expose the engine and introduce the device to all hosts that appear, until `ended` is set.

    `say` receives a sentence for every event. Raises Refused for an invalid name, token or listening address.
    """
    network = network or LocalNetwork()
    check_joining_name(options.name)
    keys = derive_keys(read_token(options.token_file))
    facts = introduction.query_engine_socket(options.engine)
    server, client = credentials.issue_credentials(network.addresses, network.now())
    context = credentials.server_context(server)
    with TlsProxy(listening_sockets(network), options.engine, context) as proxy, _host_queue(options, network) as hosts:

        def introduce(own: str, answer_to: str) -> Introduction:
            credentials = {"ca": client.ca, "cert": client.cert, "key": client.key}
            address = f"tcp://{own}:{proxy.port}"
            return Introduction(name=options.name, address=address, answer_to=answer_to, facts=facts, **credentials)

        say(f"device {options.name}: engine {facts.version}, {facts.cores} cores, {gigabytes(facts.memory_bytes, 1)}")
        say(
            f"its engine is open at port {proxy.port} of {', '.join(network.addresses)} until Ctrl-C, for at most "
            f"{credentials.VALIDITY.days} days, to hosts with the same token: whoever has the token can use this "
            "machine's engine, and by it the whole machine"
        )
        _serve_hosts(hosts, DeviceIdentity(keys=keys, introduce=introduce, network=network, say=say), ended)
    _remove_leftovers(options.engine, [f"tcp://{own}:{proxy.port}" for own in network.addresses], say)
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
    sessions: dict[str, HostSession] = {}
    try:
        while not ended.is_set():
            try:
                host = hosts.get(timeout=POLL_S)
            except queue.Empty:
                host = None
            if host is not None:
                update_sessions(sessions, host, device)
            for session in sessions.values():
                session.poll()
    finally:
        for session in sessions.values():
            session.close()


def update_sessions(sessions: dict[str, HostSession], host: AnnouncedHost, device: DeviceIdentity) -> None:
    """Begin or end the session with a host that was announced; of too many, one that is not admitted makes room."""
    if host.name in sessions:
        if sessions[host.name].host == host:
            return
        sessions.pop(host.name).close()
        if not host.addresses:
            device.say(f"host {host.name} no longer listens")
    if not host.addresses:
        return
    if len(sessions) >= MAX_HOSTS:
        not_admitted = [name for name, session in sessions.items() if not session.admitted]
        if not not_admitted:
            return
        sessions.pop(not_admitted[0]).close()
    sessions[host.name] = HostSession(host, device)


@contextmanager
def _host_queue(options: JoinOptions, network: LocalNetwork) -> Iterator["queue.SimpleQueue[AnnouncedHost]"]:
    if options.host is None:
        with browse_hosts(network.addresses) as hosts:
            yield hosts
    else:
        one: queue.SimpleQueue[AnnouncedHost] = queue.SimpleQueue()
        one.put(AnnouncedHost("{}:{}".format(*options.host), (options.host,)))
        yield one
