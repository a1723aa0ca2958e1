"""Hosts on the network, by mDNS: what a host says, and what a device hears.

Anybody on the network can say such things. A device takes from them only where to knock.
"""

import queue
import secrets
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from zeroconf import IPVersion, ServiceBrowser, ServiceInfo, ServiceStateChange, Zeroconf

from fleetune.errors import TryAgain

SERVICE = "_fleetune._tcp.local."
ASK_MS = 3000
MOST_PLACES = 8
"""Addresses of one host that are tried: an answer may list any number."""


@dataclass(frozen=True, slots=True)
class Announced:
    """A host that listens, or one that has stopped (`places` is empty then)."""

    name: str
    places: tuple[tuple[str, int], ...]
    """Addresses and ports, all of the one host."""


@contextmanager
def announced(addresses: Sequence[str], port: int, chance: Callable[[int], str] = secrets.token_hex) -> Iterator[None]:
    """Say on the networks of `addresses` that a host listens there, until the block ends."""
    name = f"{_machine()}-{chance(4)}"
    info = ServiceInfo(
        SERVICE,
        f"{name}.{SERVICE}",
        addresses=[socket.inet_aton(address) for address in addresses],
        port=port,
        server=f"{name}.local.",
    )
    with _spoken(addresses) as zeroconf:
        zeroconf.register_service(info, cooperating_responders=True)  # the name is drawn, so nobody has it
        yield


@contextmanager
def heard(addresses: Sequence[str]) -> Iterator["queue.SimpleQueue[Announced]"]:
    """Hosts on the networks of `addresses` as they come and go, until the block ends."""
    hosts: queue.SimpleQueue[Announced] = queue.SimpleQueue()

    def hear(zeroconf: Zeroconf, service_type: str, name: str, state_change: ServiceStateChange) -> None:
        places: tuple[tuple[str, int], ...] = ()
        if state_change is not ServiceStateChange.Removed:
            info = zeroconf.get_service_info(service_type, name, timeout=ASK_MS)
            if info is None or not info.port:
                return
            places = tuple((address, info.port) for address in info.parsed_addresses(IPVersion.V4Only)[:MOST_PLACES])
        hosts.put(Announced(name.removesuffix(f".{SERVICE}"), places))

    with _spoken(addresses) as zeroconf:
        browser = ServiceBrowser(zeroconf, SERVICE, handlers=[hear])
        try:
            yield hosts
        finally:
            browser.cancel()


@contextmanager
def _spoken(addresses: Sequence[str]) -> Iterator[Zeroconf]:
    try:
        zeroconf = Zeroconf(interfaces=list(addresses), ip_version=IPVersion.V4Only)
    except OSError as error:
        raise TryAgain(
            f"mDNS cannot be spoken on {', '.join(addresses)} ({error.strerror}); "
            "is the network up? fleetune join --host ADDRESS does without"
        ) from None
    try:
        yield zeroconf
    finally:
        zeroconf.close()


def _machine() -> str:
    """The first part of this machine's name, as far as a DNS label may hold it."""
    plain = "".join(c for c in socket.gethostname().partition(".")[0] if c.isascii() and (c.isalnum() or c == "-"))
    return plain[:40] or "host"
