"""`python -m fleetune.launching.docker.shape`: hold what leaves an interface to a rate per destination address.

Runs where it alone may: in a short-lived container with NET_ADMIN that shares a device's network namespace, so that
the device itself needs no such right. Reads a Shape as one line of JSON; says why in one sentence on stderr where the
kernel does not do it. Speaks netlink itself: images hold no `tc`.

One htb class per destination and a u32 filter that finds it; everything else leaves as before. What was there before is
replaced, so the same may be asked twice. The kernel hands TCP's bytes to the interface in bundles of up to 64 KiB, of
which htb lets the first pass whole: a message of that size would cross a slow link in no time. So bundles are bounded
too, for the whole interface, hence by its slowest link; that holds for connections made afterwards.
"""

import math
import sys
from collections.abc import Iterable
from ipaddress import AddressValueError, IPv4Address
from typing import Any

from pyroute2 import IPRoute
from pyroute2.netlink.exceptions import NetlinkError
from pyroute2.protocols import ETH_P_IP

from fleetune.contracts import wire
from fleetune.contracts.record import positive, record
from fleetune.errors import FleetuneError, Refused, TryAgain

BURST_S = 2.5e-4
"""What may leave at once after a pause, and in one bundle, in seconds of the rate: small beside the latencies that
links are said to have, and enough for a timer that comes late."""
FRAME_BYTES, SEGMENT_BYTES = 1514, 1448
MOST_SEGMENTS = 44
"""In a bundle of 64 KiB."""
GOODPUT = SEGMENT_BYTES / FRAME_BYTES
"""Share of what htb counts (an Ethernet frame) that is a TCP segment's payload."""
QUANTUM_BYTES = 60_000
QUEUE_PACKETS = 1000
NOT_THERE = (2, 22)  # ENOENT, EINVAL: no queue of ours to remove

ROOT, FIRST_CLASS, FIRST_QUEUE = 0x10000, 0x10010, 0x20000
DESTINATION_OFFSET = 16
"""Where an IPv4 header has the destination address."""


@record
class Shape:
    """What is to leave how fast."""

    interface: str
    rates: dict[str, float]
    """IPv4 address -> bytes per second of payload that may leave for it."""

    def __post_init__(self) -> None:
        for address, bytes_per_s in self.rates.items():
            positive(f"shape: rate to {address}", bytes_per_s=bytes_per_s)
            try:
                IPv4Address(address)
            except AddressValueError:
                raise Refused(f"shape: {address!r} is not an IPv4 address") from None


@record
class Class:
    """Parameters of one htb class."""

    rate: int
    """Bytes per second of whole frames."""
    burst: int
    """Bytes that may leave at once after a pause, besides the one frame that always may."""

    def plain(self) -> dict[str, int]:
        """As tc calls them; it may never borrow, so its ceiling is its rate."""
        return {
            "rate": self.rate,
            "ceil": self.rate,
            "burst": self.burst,
            "cburst": self.burst,
            "quantum": QUANTUM_BYTES,
        }


def class_for(bytes_per_s: float) -> Class:
    """The class through which that much payload arrives per second."""
    rate = bytes_per_s / GOODPUT
    return Class(rate=round(rate), burst=math.ceil(rate * BURST_S))


def bundle_segments(rates: Iterable[float]) -> int:
    """How many TCP segments may reach the interface as one: as many as the slowest link carries in BURST_S."""
    fitting = [int(rate * BURST_S / SEGMENT_BYTES) for rate in rates]
    return max(1, min([MOST_SEGMENTS, *fitting]))


def filter_key(address: str) -> str:
    """What u32 must find in a packet for that address."""
    return f"{int(IPv4Address(address)):#010x}/0xffffffff+{DESTINATION_OFFSET}"


def apply(asked: Shape, netlink: Any) -> None:
    """Replace the interface's queue; TryAgain where the kernel does not."""
    found = netlink.link_lookup(ifname=asked.interface)
    if not found:
        raise TryAgain(f"interface {asked.interface} is not there; is the container on a network?")
    (index,) = found
    try:
        _remove(netlink, index)
        netlink.link("set", index=index, gso_max_segs=bundle_segments(asked.rates.values()))
        netlink.tc("add", "htb", index, ROOT, default=0)
        for number, (address, bytes_per_s) in enumerate(sorted(asked.rates.items())):
            target = FIRST_CLASS + number
            netlink.tc("add-class", "htb", index, target, parent=ROOT, **class_for(bytes_per_s).plain())
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
        raise TryAgain(f"interface {asked.interface} cannot be shaped: the kernel says {error.args[1]}") from None


def _remove(netlink: Any, index: int) -> None:
    try:
        netlink.tc("del", index=index, root=True)
    except NetlinkError as error:
        if error.code not in NOT_THERE:
            raise


def main() -> int:
    """Shape as stdin says; 0, or 75 after a sentence."""
    try:
        asked = wire.parse(Shape, sys.stdin.buffer.readline(), "shape")
        with IPRoute() as netlink:
            apply(asked, netlink)
    except (FleetuneError, OSError) as error:
        sys.stderr.write(f"{error}\n")
        return TryAgain.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
