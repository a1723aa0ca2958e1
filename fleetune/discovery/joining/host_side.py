"""Host side of joining: collects devices that introduce themselves, logs refusals, and extends the fleet request."""

import os
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from datetime import datetime
from pathlib import Path

from fleetune.contracts import json_io
from fleetune.contracts.fleet import DOCKER, LOCAL
from fleetune.contracts.fleet_request import DeviceRequest, FleetRequest, Join
from fleetune.discovery.joining.credentials import TokenKeys, derive_keys, read_token
from fleetune.discovery.joining.introduction import (
    DEVICE,
    HOST,
    JOIN_RUN,
    OLD_REFUSAL_LOG,
    REFUSAL_LOG,
    Introduction,
    JoinedDevice,
    store_credentials,
    verify_engine,
)
from fleetune.discovery.joining.network import DEFAULT_HOST_PORT, LocalNetwork, announce_host, listening_sockets
from fleetune.discovery.joining.tls_proxy import ProxiedConnection, TlsProxy
from fleetune.errors import FleetuneError, Refused, TryAgain
from fleetune.filesystem import expanded
from fleetune.links.endpoint import Endpoint, Listen
from fleetune.links.message import Message

REJECTION_BYTES = 64 + 170 + 32
"""Upper bound of the bytes that a rejected client receives: ZMTP greeting, CURVE WELCOME, ERROR. An admitted client
receives more, beginning with a READY of 60 bytes."""
MAX_LOGGED = 200
"""Maximum number of refusals to log; later ones are only counted."""
MAX_LOG_BYTES = 1 << 20
"""A longer log of an earlier run is rotated; one old log is kept."""
MAX_LINE_CHARACTERS = 400
"""Maximum length of a log line."""
POLL_S = 0.2
CLOSE_TIMEOUT_S = 1.0
"""Short, so that rejected clients free their connections soon."""
MAX_PATH_CHARACTERS = 70
"""Maximum length of the folder for a unix socket, whose whole path is limited to 107 characters."""
MAX_ANSWERED = 256
"""Maximum number of devices to answer, since each answer takes a connection; a restarted device counts again."""
MAX_MESSAGE_BYTES = 1 << 10
"""Maximum bytes of message parts; an introduction has only a header."""


class RefusalLog:
    """Log of refused clients in folder/refused.log; takes entries from any thread. Close it after use."""

    def __init__(self, folder: Path, note: Callable[[str], None], now: Callable[[], datetime]) -> None:
        self._file, self._note, self._now = folder / REFUSAL_LOG, note, now
        self._logged: set[str] = set()
        self._suppressed = 0
        self._lock = threading.Lock()
        if self._file.exists() and self._file.stat().st_size > MAX_LOG_BYTES:
            self._file.replace(folder / OLD_REFUSAL_LOG)

    def log_if_rejected(self, connection: ProxiedConnection) -> None:
        """Log a connection that ended if its client was rejected: it sent data but received only the greeting."""
        if connection.inbound_bytes and connection.outbound_bytes < REJECTION_BYTES:
            self.add(connection.remote, "turned away: its token is another, or it is no device of ours")

    def add(self, who: str, why: str) -> None:
        """Note and log a refusal, unless the same sentence was logged before."""
        sentence = " ".join(f"{who} may not join: {why}".split())[:MAX_LINE_CHARACTERS]
        with self._lock:
            if sentence in self._logged:
                return
            if len(self._logged) >= MAX_LOGGED:
                self._suppressed += 1
                return
            self._logged.add(sentence)
            self._write(sentence)
        self._note(sentence)

    def close(self) -> None:
        """Note and log the number of refusals beyond MAX_LOGGED; safe to repeat."""
        with self._lock:
            suppressed, self._suppressed = self._suppressed, 0
            if suppressed:
                self._write(f"{suppressed} further refusals are not listed")
        if suppressed:
            self._note(f"{suppressed} further refusals to join are only counted")

    def _write(self, sentence: str) -> None:
        file = os.open(self._file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        with os.fdopen(file, "w", encoding="utf-8", errors="replace") as log:
            log.write(f"{self._now().isoformat(timespec='seconds')} {sentence}\n")


def collect_devices(
    join: Join, folder: Path, note: Callable[[str], None], network: LocalNetwork | None = None
) -> tuple[JoinedDevice, ...]:
    """Listen for `join.wait_s` seconds and return the devices that joined, sorted by name.

    Stores their credentials in folder/NAME; notes refused clients and logs them in folder/refused.log. Raises Refused
    for an invalid token file, an unusable listening address, and two devices with one name.
    """
    network = network or LocalNetwork()
    keys = derive_keys(read_token(expanded(join.token_file)))
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    refusals = RefusalLog(folder, note, network.now)
    with closing(refusals), _open_listener(keys, network, refusals) as (endpoint, proxy):
        note(
            f"listening {join.wait_s:g} s for devices that join, at port {proxy.port} of {', '.join(network.addresses)}"
        )
        registry = JoinRegistry(endpoint, keys, folder, note, refusals)
        with announce_host(network.addresses, proxy.port):
            deadline_s = network.clock() + join.wait_s
            while network.clock() < deadline_s:
                received = endpoint.receive(POLL_S)
                if received is not None and received.message.kind == "here":
                    registry.handle(received.message)
    return tuple(registry.joined[name] for name in sorted(registry.joined))


class JoinRegistry:
    """Registry of the devices that introduce themselves."""

    def __init__(
        self, endpoint: Endpoint, keys: TokenKeys, folder: Path, note: Callable[[str], None], refusals: RefusalLog
    ) -> None:
        self.joined: dict[str, JoinedDevice] = {}
        self._known: dict[str, Introduction] = {}
        self._endpoint, self._keys, self._folder, self._note, self._refusals = endpoint, keys, folder, note, refusals

    def handle(self, message: Message) -> None:
        """Admit a device or answer with the reason of its refusal; raises Refused if another device has its name."""
        try:
            introduction = json_io.load(Introduction, message.header, "introduction")
        except Refused as error:
            return self._refusals.add("a device with the token", str(error))
        name = introduction.name
        try:
            self._check_unique(introduction)
            device = store_credentials(introduction, verify_engine(introduction), self._folder)
        except FleetuneError as error:
            self._answer(introduction, Message("refused", {"why": str(error)}))
            if isinstance(error, Refused):
                raise
            return self._refusals.add(f"device {name}", str(error))
        self._answer(introduction, Message("welcome", {}))
        if name not in self.joined:
            self._note(f"device {name} has joined: engine {device.facts.version} at {introduction.address}")
        self.joined[name], self._known[name] = device, introduction

    def _check_unique(self, introduction: Introduction) -> None:
        """Raise Refused if another device with this name still answers; the old address of a restarted one does not."""
        earlier = self._known.get(introduction.name)
        if earlier is None or earlier.address == introduction.address:
            return
        with suppress(TryAgain):
            verify_engine(earlier)
            raise Refused(
                f"two devices join as {introduction.name!r}, at {earlier.address} and at {introduction.address}; "
                "start one of them with another name: fleetune join --name NAME"
            )

    def _answer(self, introduction: Introduction, message: Message) -> None:
        peer = introduction.answer_to
        if peer not in self._endpoint.sent_bytes:
            if len(self._endpoint.sent_bytes) >= MAX_ANSWERED:
                return self._refusals.add(f"device {introduction.name}", f"{MAX_ANSWERED} devices have been answered")
            self._endpoint.connect(peer, peer, self._keys.device.public)
        self._endpoint.send(peer, message)


@contextmanager
def _open_listener(keys: TokenKeys, network: LocalNetwork, refusals: RefusalLog) -> Iterator[tuple[Endpoint, TlsProxy]]:
    """Listen on the network by a proxy, which records remote addresses; the endpoint behind it is a unix socket."""
    default = tempfile.gettempdir()
    folder = default if len(default) <= MAX_PATH_CHARACTERS else "/tmp"
    with tempfile.TemporaryDirectory(prefix="fleetune-join-", dir=folder) as private:
        socket = f"{private}/host"
        listen = Listen(bind=f"ipc://{socket}", max_message_bytes=MAX_MESSAGE_BYTES)
        known = {DEVICE: keys.device.public}
        with (
            Endpoint(HOST, keys.host, known, run=JOIN_RUN, listen=listen, note=lambda _: None) as endpoint,
            TlsProxy(
                listening_sockets(network, default_port=DEFAULT_HOST_PORT),
                socket,
                on_end=refusals.log_if_rejected,
                close_timeout_s=CLOSE_TIMEOUT_S,
                unauthenticated_bytes=REJECTION_BYTES,
            ) as proxy,
        ):
            yield endpoint, proxy


def joined_request(
    request: FleetRequest, folder: Path, note: Callable[[str], None], network: LocalNetwork | None = None
) -> FleetRequest:
    """Add all devices that join, with their engines, to the request; a request without `join` is returned unchanged.

    A device listed in the file keeps its settings and gets the engine that joined under its name. Raises Refused if
    the file assigns that name to another machine, and TryAgain if the fleet would have no device.
    """
    if request.join is None:
        return request
    if request.simulated:
        raise Refused("fleet: its devices are simulated, so none can join them; leave out join")
    return add_joined(request, collect_devices(request.join, folder, note, network))


def add_joined(request: FleetRequest, joined: tuple[JoinedDevice, ...]) -> FleetRequest:
    """Add devices that joined to the request; errors as in joined_request."""
    by_name = {device.name: device for device in joined}
    for engine in request.engines:
        if engine.name in by_name:
            raise Refused(
                f"engine {engine.name}: it is in the fleet file, and a device has joined by that name, from "
                f"{by_name[engine.name].engine.address}; rename one of them: fleetune join --name NAME"
            )
    devices = [_with_joined_engine(device) if device.name in by_name else device for device in request.devices]
    listed = {device.name for device in devices}
    devices += [DeviceRequest(name=name, launcher=DOCKER, engine=name) for name in by_name if name not in listed]
    if not devices:
        wait_s = request.join.wait_s if request.join else 0.0
        raise TryAgain(
            f"fleet: it names no device, and none has joined within {wait_s:g} s; "
            "run fleetune join with the same token on every device, then try again"
        )
    return replace(request, devices=tuple(devices), engines=(*request.engines, *(each.engine for each in joined)))


def _with_joined_engine(device: DeviceRequest) -> DeviceRequest:
    """Listed device with the engine that joined under its name; Refused if it already runs elsewhere."""
    if device.launcher != DOCKER or device.engine != LOCAL:
        where = f"engine {device.engine}" if device.launcher == DOCKER else "processes of this machine"
        raise Refused(
            f"device {device.name}: it is in the fleet file, with {where}, and another device has joined by that name; "
            f"rename one of them, or write launcher: docker and no engine for the one that joins"
        )
    return replace(device, engine=device.name)
