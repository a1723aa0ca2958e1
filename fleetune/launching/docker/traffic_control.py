"""`python -m fleetune.launching.docker.traffic_control` limits the rate from an interface to each destination address.

It runs in a short-lived container with NET_ADMIN that shares a device's network namespace, so that the device needs no
such right. It reads a TrafficShape as one line of JSON, and prints one sentence to stderr where the kernel refuses. It
speaks netlink itself, because images hold no `tc`.

Each destination gets an htb class and a u32 filter; other traffic is not limited. An existing queue is replaced, so the
program may run again. The kernel hands TCP data to the interface in segments merged to up to 64 KiB (GSO), of which htb
lets the first pass whole, so that such a message would cross a slow link at once. The size of merged segments is
therefore bounded for the whole interface, by its slowest link; this holds for connections made afterwards.
"""

import math
import sys
from collections.abc import Callable, Iterable
from ipaddress import AddressValueError, IPv4Address
from typing import Any

from pyroute2 import IPRoute
from pyroute2.netlink.exceptions import NetlinkError
from pyroute2.protocols import ETH_P_IP

from fleetune.contracts import json_io
from fleetune.contracts.record import positive, record
from fleetune.errors import FleetuneError, Refused, TryAgain

BURST_S = 2.5e-4
"""Largest burst, and largest merged segment, in seconds of the rate: small beside the latencies of links, and enough
to make up for a late timer."""
FRAME_BYTES, SEGMENT_BYTES = 1514, 1448
MAX_SEGMENTS = 44
"""Segments in 64 KiB."""
GOODPUT = SEGMENT_BYTES / FRAME_BYTES
"""Payload of a TCP segment as a share of its Ethernet frame, which is what htb counts."""
QUANTUM_BYTES = 60_000
QUEUE_PACKETS = 1000
NO_QUEUE_ERRORS = (2, 22)  # ENOENT, EINVAL: there is no queue to remove

ROOT, FIRST_CLASS, FIRST_QUEUE = 0x10000, 0x10010, 0x20000
DESTINATION_OFFSET = 16
"""Offset of the destination address in an IPv4 header, in bytes."""


@record
class TrafficShape:
    """Rate limits of an interface."""

    interface: str
    rates: dict[str, float]
    """IPv4 destination address -> bytes per second of payload."""

    def __post_init__(self) -> None:
        for address, bytes_per_s in self.rates.items():
            positive(f"shape: rate to {address}", bytes_per_s=bytes_per_s)
            try:
                IPv4Address(address)
            except AddressValueError:
                raise Refused(f"shape: {address!r} is not an IPv4 address") from None


@record
class HtbClass:
    """Parameters of an htb class."""

    rate: int
    """Bytes per second of whole frames."""
    burst: int
    """Bytes that may leave at once after a pause, besides one frame."""

    def options(self) -> dict[str, int]:
        """Options under tc's names; the ceiling equals the rate, so that the class never borrows."""
        return {
            "rate": self.rate,
            "ceil": self.rate,
            "burst": self.burst,
            "cburst": self.burst,
            "quantum": QUANTUM_BYTES,
        }


def htb_class(bytes_per_s: float) -> HtbClass:
    """The class that lets through so many bytes of payload per second."""
    rate = bytes_per_s / GOODPUT
    return HtbClass(rate=round(rate), burst=math.ceil(rate * BURST_S))


def max_gso_segments(rates: Iterable[float]) -> int:
    """Bound on merged TCP segments: as many as the slowest link carries in BURST_S."""
    fitting = [int(rate * BURST_S / SEGMENT_BYTES) for rate in rates]
    return max(1, min([MAX_SEGMENTS, *fitting]))


def filter_key(address: str) -> str:
    """Key of a u32 filter for packets to an address."""
    return f"{int(IPv4Address(address)):#010x}/0xffffffff+{DESTINATION_OFFSET}"


def apply(shape: TrafficShape, netlink: Any) -> None:
    """Replace the interface's queue; TryAgain where the kernel refuses."""
    found = netlink.link_lookup(ifname=shape.interface)
    if not found:
        raise TryAgain(f"interface {shape.interface} is not there; is the container on a network?")
    (index,) = found
    try:
        _remove_queue(netlink, index)
        netlink.link("set", index=index, gso_max_segs=max_gso_segments(shape.rates.values()))
        netlink.tc("add", "htb", index, ROOT, default=0)
        for number, (address, bytes_per_s) in enumerate(sorted(shape.rates.items())):
            target = FIRST_CLASS + number
            netlink.tc("add-class", "htb", index, target, parent=ROOT, **htb_class(bytes_per_s).options())
            queue = FIRST_QUEUE + (number << 16)
            netlink.tc("add", "pfifo", index, queue, parent=target, limit=QUEUE_PACKETS)
            netlink.tc(
                "add-filter",
                "u32",
                index,
                parent=ROOT,
                prio=1,
                protocol=ETH_P_IP,
                target=target,
                keys=[filter_key(address)],
            )
    except NetlinkError as error:
        raise TryAgain(f"interface {shape.interface} cannot be shaped: the kernel says {error.args[1]}") from None


def _remove_queue(netlink: Any, index: int) -> None:
    try:
        netlink.tc("del", index=index, root=True)
    except NetlinkError as error:
        if error.code not in NO_QUEUE_ERRORS:
            raise


def main(open_netlink: Callable[[], Any] = IPRoute) -> int:
    """Apply the shape on stdin; returns 0, or 75 after a sentence on stderr."""
    try:
        shape = json_io.parse(TrafficShape, sys.stdin.buffer.readline(), "shape")
        with open_netlink() as netlink:
            apply(shape, netlink)
    except (FleetuneError, OSError) as error:
        sys.stderr.write(f"{error}\n")
        return TryAgain.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
