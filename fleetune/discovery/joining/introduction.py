"""Introduction of a device to a host: its message, verified against the device's engine, and its stored credentials.

Device and host talk after mutual authentication by the token: the device sends `here` (an Introduction); the host
answers `welcome`, or `refused` with `why`.
"""

import os
import re
import socket
from dataclasses import field
from http.client import HTTPException
from ipaddress import AddressValueError, IPv4Address
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from containers import engine_api
from fleetune.contracts import json_io
from fleetune.contracts.fleet import Engine
from fleetune.contracts.record import check_device_name, positive, record
from fleetune.discovery.joining.credentials import TlsCredentials, client_context
from fleetune.errors import Refused, TryAgain

SOCKET_TIMEOUT_S = 3.0
QUERY_TIMEOUT_S = 10.0
MAX_ANSWER_BYTES = 1 << 20
JOIN_RUN = "join"
"""Run id on the links of host and devices; authentication depends on the token alone."""
HOST, DEVICE = "host", "device"
REFUSAL_LOG, OLD_REFUSAL_LOG = "refused.log", "refused.log.1"
MAX_NAME_CHARACTERS = 64
"""Maximum length of a device's name."""
ADDRESS = re.compile(r"tcp://([0-9.]{7,15}):([0-9]{1,5})")
MAX_PEM_CHARACTERS = 1 << 14


@record
class EngineReport:
    """Properties of a device's machine as its container engine reports them."""

    version: str
    """Version of the engine."""
    cores: int
    memory_bytes: int
    runtimes: tuple[str, ...] = ()
    """Container runtimes; includes `nvidia` if containers can use a GPU."""

    def __post_init__(self) -> None:
        positive("engine", cores=self.cores, memory_bytes=self.memory_bytes)


def query_engine_socket(path: str) -> EngineReport:
    """Query the engine behind a unix socket; TryAgain if it gives no valid answer."""
    with socket.socket(socket.AF_UNIX) as connected:
        connected.settimeout(SOCKET_TIMEOUT_S)
        try:
            connected.connect(path)
        except OSError as error:
            raise TryAgain(f"the engine at {path} does not answer ({error.strerror}); is it running?") from None
        return query_engine(connected, path)


def query_engine(connected: socket.socket, address: str, limit_s: float = QUERY_TIMEOUT_S) -> EngineReport:
    """Query an engine over a connected socket, plain or TLS, within `limit_s` in all; TryAgain names `address`."""
    try:
        body = engine_api.get(connected, "/info", max_bytes=MAX_ANSWER_BYTES, limit_s=limit_s)
        info = json_io.parse_plain(body, f"engine at {address}")
        return json_io.load(EngineReport, _report_fields(info), f"engine at {address}")
    except (OSError, HTTPException, ValueError, KeyError, TypeError, AttributeError) as error:
        why = str(error) if isinstance(error, Refused) else getattr(error, "strerror", None) or type(error).__name__
        raise TryAgain(f"the engine at {address} gives no valid answer ({why})") from None


def _report_fields(info: dict[str, Any]) -> dict[str, Any]:
    """Fields of EngineReport from the engine's answer to GET /info."""
    return {
        "version": info["ServerVersion"],
        "cores": info["NCPU"],
        "memory_bytes": info["MemTotal"],
        "runtimes": sorted(info.get("Runtimes") or ()),
    }


@record
class Introduction:
    """First message of a device."""

    name: str
    address: str
    """tcp://ADDRESS:PORT of its engine, which accepts only the client certificate `cert`."""
    answer_to: str
    """tcp://ADDRESS:PORT that receives the answer."""
    facts: EngineReport
    ca: str
    cert: str
    key: str = field(repr=False)

    def __post_init__(self) -> None:
        check_joining_name(self.name)
        Engine(name=self.name, address=self.address, tls=".")  # validates the address
        _check_address(f"device {self.name}: address", self.address)
        for what, text in (("ca", self.ca), ("cert", self.cert), ("key", self.key)):
            if len(text) > MAX_PEM_CHARACTERS:
                raise Refused(f"device {self.name}: {what} has {len(text)} characters; at most {MAX_PEM_CHARACTERS}")
        _check_address(f"device {self.name}: answer_to", self.answer_to)


def _check_address(owner: str, address: str) -> None:
    """Raise Refused unless `address` is a numeric IPv4 address with a port: names would be looked up."""
    found = ADDRESS.fullmatch(address)
    try:
        usable = found is not None and bool(IPv4Address(found[1])) and 0 < int(found[2]) < 1 << 16
    except AddressValueError:
        usable = False
    if not usable:
        raise Refused(f"{owner} is {address[:80]!r}; write tcp://ADDRESS:PORT, the address in numbers")


def check_joining_name(name: str) -> None:
    """Raise Refused for an invalid device name, and for names that collide with the refusal log."""
    check_device_name(name)
    if len(name) > MAX_NAME_CHARACTERS or name in (REFUSAL_LOG, OLD_REFUSAL_LOG):
        raise Refused(
            f"device {name[:MAX_NAME_CHARACTERS]}: a name has at most {MAX_NAME_CHARACTERS} characters "
            f"and is not {REFUSAL_LOG}"
        )


@record
class JoinedDevice:
    """Device that joined, with access to its engine."""

    name: str
    engine: Engine
    """`engine.tls` is the folder with ca.pem, cert.pem and key.pem, readable by the owner only."""
    facts: EngineReport


def verify_engine(introduction: Introduction) -> EngineReport:
    """Query the engine at the introduced address with the introduced certificate; TryAgain if that fails."""
    credentials = TlsCredentials(ca=introduction.ca, cert=introduction.cert, key=introduction.key)
    address = urlsplit(introduction.address)
    try:
        context = client_context(credentials)
    except (OSError, ValueError):  # ssl.SSLError is an OSError
        raise TryAgain(f"device {introduction.name}: its certificates cannot be used; join again") from None
    try:
        plain = socket.create_connection((str(address.hostname), address.port), SOCKET_TIMEOUT_S)
    except OSError as error:
        why = error.strerror or type(error).__name__
        raise TryAgain(f"the engine at {introduction.address} gives no valid answer ({why})") from None
    with context.wrap_socket(plain, server_hostname=str(address.hostname), do_handshake_on_connect=False) as connected:
        return query_engine(connected, introduction.address)


def store_credentials(introduction: Introduction, facts: EngineReport, folder: Path) -> JoinedDevice:
    """Write the device's credentials to folder/NAME, readable by the owner only."""
    own = folder / introduction.name
    own.mkdir(mode=0o700, parents=True, exist_ok=True)
    own.chmod(0o700)
    for name, text in (("ca", introduction.ca), ("cert", introduction.cert), ("key", introduction.key)):
        path = own / f"{name}.pem"
        path.unlink(missing_ok=True)  # an old file may have other permissions
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
            file.write(text)
    engine = Engine(name=introduction.name, address=introduction.address, tls=str(own.resolve()))
    return JoinedDevice(name=introduction.name, engine=engine, facts=facts)
