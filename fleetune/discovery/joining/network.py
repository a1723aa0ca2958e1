"""Local network: a machine's addresses, clocks and listening sockets, and hosts announced by mDNS.

mDNS is unauthenticated: anybody on the network can announce hosts, so a device uses only their addresses.
"""

import ipaddress
import queue
import secrets
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import psutil
from zeroconf import IPVersion, ServiceBrowser, ServiceInfo, ServiceStateChange, Zeroconf

from fleetune.errors import Refused, TryAgain
from fleetune.wall_clock import WallClock, utc_now

LOOPBACK = "127.0.0.1"
BRIDGES = ("docker", "br-")
DEFAULT_HOST_PORT = 27613
"""Port of a host unless it is taken; below the range of ephemeral ports."""


def own_addresses() -> tuple[str, ...]:
    """IPv4 addresses of this machine's running interfaces; loopback only if there is no other.

    Excludes an engine's bridges, which reach no other machine and change with its containers.
    """
    running = {name for name, state in psutil.net_if_stats().items() if state.isup and not name.startswith(BRIDGES)}
    addresses_found = [
        each.address
        for name, addresses in psutil.net_if_addrs().items()
        for each in addresses
        if each.family == socket.AF_INET and name in running and not ipaddress.ip_address(each.address).is_loopback
    ]
    return tuple(addresses_found) or (LOOPBACK,)


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalNetwork:
    """Addresses, port and clocks of a host or device; tests replace them."""

    addresses: tuple[str, ...] = field(default_factory=own_addresses)
    """Addresses to listen on, whose networks also carry mDNS."""
    port: int | None = None
    """None: DEFAULT_HOST_PORT for a host if it is free, else any port."""
    clock: Callable[[], float] = time.monotonic
    now: WallClock = utc_now

    def source_address(self, address: str) -> str:
        """Own address under which a machine at `address` reaches this one."""
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:  # connecting a UDP socket sends nothing
            try:
                probe.connect((address, DEFAULT_HOST_PORT))
                own = str(probe.getsockname()[0])
            except OSError:
                own = ""
        return own if own in self.addresses else self.addresses[0]


def listening_sockets(network: LocalNetwork, default_port: int = 0) -> list[socket.socket]:
    """Open a listening socket per own address, all on one port: the requested one, else `default_port`, else any.

    Raises Refused if no socket can be bound.
    """
    requested_port = network.port
    try:
        return _bind_all(network.addresses, default_port if requested_port is None else requested_port)
    except OSError as error:
        if requested_port is None and default_port:
            return listening_sockets(network)
        where = ", ".join(f"{address}:{requested_port or 'any'}" for address in network.addresses)
        raise Refused(f"{where}: cannot be listened on ({error.strerror}); give another address or port") from None


def _bind_all(addresses: tuple[str, ...], port: int) -> list[socket.socket]:
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


SERVICE = "_fleetune._tcp.local."
QUERY_TIMEOUT_MS = 3000
MAX_ADDRESSES = 8
"""Maximum number of addresses to try per host; an announcement can list any number."""


@dataclass(frozen=True, slots=True)
class AnnouncedHost:
    """Host that mDNS announces; `addresses` is empty if it has stopped listening."""

    name: str
    addresses: tuple[tuple[str, int], ...]
    """(address, port) pairs of the host."""


@contextmanager
def announce_host(
    addresses: Sequence[str], port: int, random_hex: Callable[[int], str] = secrets.token_hex
) -> Iterator[None]:
    """Announce a host at `addresses` on their networks until the block ends; TryAgain if mDNS is unavailable."""
    name = f"{_host_label()}-{random_hex(4)}"
    info = ServiceInfo(
        SERVICE,
        f"{name}.{SERVICE}",
        addresses=[socket.inet_aton(address) for address in addresses],
        port=port,
        server=f"{name}.local.",
    )
    with _mdns(addresses) as zeroconf:
        zeroconf.register_service(info, cooperating_responders=True)  # the name is random and so unique
        yield


@contextmanager
def browse_hosts(addresses: Sequence[str]) -> Iterator["queue.SimpleQueue[AnnouncedHost]"]:
    """Queue of hosts that appear and disappear on the networks of `addresses`, until the block ends."""
    hosts: queue.SimpleQueue[AnnouncedHost] = queue.SimpleQueue()

    def on_change(zeroconf: Zeroconf, service_type: str, name: str, state_change: ServiceStateChange) -> None:
        endpoints: tuple[tuple[str, int], ...] = ()
        if state_change is not ServiceStateChange.Removed:
            info = zeroconf.get_service_info(service_type, name, timeout=QUERY_TIMEOUT_MS)
            if info is None or not info.port:
                return
            endpoints = tuple(
                (address, info.port) for address in info.parsed_addresses(IPVersion.V4Only)[:MAX_ADDRESSES]
            )
        hosts.put(AnnouncedHost(name.removesuffix(f".{SERVICE}"), endpoints))

    with _mdns(addresses) as zeroconf:
        browser = ServiceBrowser(zeroconf, SERVICE, handlers=[on_change])
        try:
            yield hosts
        finally:
            browser.cancel()


@contextmanager
def _mdns(addresses: Sequence[str]) -> Iterator[Zeroconf]:
    try:
        zeroconf = Zeroconf(interfaces=list(addresses), ip_version=IPVersion.V4Only)
    except OSError as error:
        raise TryAgain(
            f"mDNS is not available on {', '.join(addresses)} ({error.strerror}); "
            "is the network up? fleetune join --host ADDRESS works without mDNS"
        ) from None
    try:
        yield zeroconf
    finally:
        zeroconf.close()


def _host_label() -> str:
    """First part of this machine's host name, reduced to a valid DNS label."""
    plain = "".join(c for c in socket.gethostname().partition(".")[0] if c.isascii() and (c.isalnum() or c == "-"))
    return plain[:40] or "host"
