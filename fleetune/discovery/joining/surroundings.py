"""Where a host or a device is: its addresses, its clocks."""

import ipaddress
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime

import psutil

from fleetune.errors import Refused

LOOPBACK = "127.0.0.1"
BRIDGES = ("docker", "br-")
HOST_PORT = 27613
"""Where a host listens if nobody else does there; below the ports that systems give out."""


def own_addresses() -> tuple[str, ...]:
    """IPv4 addresses of this machine's interfaces that are up, loopback only where there is no other.

    Bridges of an engine are left out: no other machine is behind them, and they come and go with their containers.
    """
    running = {name for name, state in psutil.net_if_stats().items() if state.isup and not name.startswith(BRIDGES)}
    found = [
        each.address
        for name, addresses in psutil.net_if_addrs().items()
        for each in addresses
        if each.family == socket.AF_INET and name in running and not ipaddress.ip_address(each.address).is_loopback
    ]
    return tuple(found) or (LOOPBACK,)


def utc_now() -> datetime:
    """The time of day, as certificates and logs have it."""
    return datetime.now(UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """What a host or a device takes from its machine; tests bring their own."""

    addresses: tuple[str, ...] = field(default_factory=own_addresses)
    """Where to listen, and on whose networks to speak mDNS."""
    port: int | None = None
    """None: a host takes HOST_PORT if it is free, a device any."""
    clock: Callable[[], float] = time.monotonic
    now: Callable[[], datetime] = utc_now

    def towards(self, address: str) -> str:
        """Which of the own addresses a machine at `address` finds this one by."""
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as way:  # connecting a datagram socket sends nothing
            try:
                way.connect((address, HOST_PORT))
                own = str(way.getsockname()[0])
            except OSError:
                own = ""
        return own if own in self.addresses else self.addresses[0]


def listening(surroundings: Surroundings, usual: int = 0) -> list[socket.socket]:
    """A listening socket per own address, all with one port; `usual` is tried first where none is asked for."""
    asked = surroundings.port
    try:
        return _bound(surroundings.addresses, usual if asked is None else asked)
    except OSError as error:
        if asked is None and usual:
            return listening(surroundings)
        where = ", ".join(f"{address}:{asked or 'any'}" for address in surroundings.addresses)
        raise Refused(f"{where}: cannot be listened on ({error.strerror}); give another address or port") from None


def _bound(addresses: tuple[str, ...], port: int) -> list[socket.socket]:
    sockets: list[socket.socket] = []
    try:
        for address in addresses:
            sockets.append(socket.create_server((address, port)))
            port = sockets[0].getsockname()[1]
    except OSError:
        for each in sockets:
            each.close()
        raise
    return sockets
