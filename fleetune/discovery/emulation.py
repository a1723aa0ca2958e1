"""Whether links that are emulated came out as they were asked."""

from collections.abc import Iterable
from typing import Protocol

from fleetune.contracts.fleet import Link
from fleetune.contracts.link_spec import BYTES_PER_MBIT, LinkSpec, NetworkSpec

TOLERANCE = 0.1
OWN_LATENCY_S = 1e-3
"""What the transport itself may add to a latency."""


class Measured(Protocol):
    """A latency and a rate, of a link or of a fitted line."""

    @property
    def latency_s(self) -> float:
        """Seconds that an empty message takes."""

    @property
    def bytes_per_s(self) -> float:
        """What arrives in a second."""


def holds(asked: LinkSpec, found: Measured) -> bool:
    """Whether rate and latency are within TOLERANCE of what was asked, the transport's own latency allowed for."""
    rate_off = abs(found.bytes_per_s - asked.bytes_per_s)
    latency_off_s = abs(found.latency_s - asked.latency_s)
    return rate_off <= TOLERANCE * asked.bytes_per_s and latency_off_s <= TOLERANCE * asked.latency_s + OWN_LATENCY_S


def deviations(asked: NetworkSpec, links: Iterable[Link]) -> list[str]:
    """A sentence for every link that is not as asked."""
    ways = [(asked.link(link.source, link.target), link) for link in links]
    return [
        f"link {way.source} -> {way.target}: asked {way.mbit_per_s:.3g} Mbit/s and {1e3 * way.latency_s:.3g} ms, "
        f"measured {link.bytes_per_s / BYTES_PER_MBIT:.3g} Mbit/s and {1e3 * link.latency_s:.3g} ms; is the machine "
        "busy, or an end's share of processor time too small for that rate?"
        for way, link in ways
        if not holds(way, link)
    ]
