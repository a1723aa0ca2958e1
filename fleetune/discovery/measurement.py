"""The `measurement` artifact: what discovery measured in one run, and how much other programs disturbed it.

The `fleet` of that run may be an earlier one (`fleetune.discovery.hysteresis` decides); the next run compares its own
measurement with this one. Tolerances tell whether measured links agree with the requested ones, and a new measurement
with the stored fleet.
"""

from collections.abc import Iterable
from dataclasses import replace
from typing import Protocol

from fleetune.contracts.fleet import BYTES_PER_MBIT, Device, Fleet, Link, LinkSpec, NetworkSpec
from fleetune.contracts.record import record
from fleetune.discovery.machine import MachineLoad


@record
class LinkFit:
    """Fitted line of a link; `error` is the median relative distance of the sizes' times from it."""

    latency_s: float
    bytes_per_s: float
    error: float


@record
class LinkEvidence:
    """The probes of one link, and the load of the busier end's machine meanwhile."""

    source: str
    target: str
    lines: tuple[LinkFit, ...]
    """One for each probe."""
    load: MachineLoad


@record
class Measurement:
    """A fleet as one run measured it; `links` is empty for a simulated fleet."""

    fleet: Fleet
    links: tuple[LinkEvidence, ...] = ()


TOLERANCE = 0.1
"""Relative deviation of an emulated link from its request."""
TRANSPORT_LATENCY_S = 1e-3
"""Latency that the transport itself can add."""
COMPARED_BYTES = (1 << 16, 1 << 22)
"""Message sizes whose predicted times are compared."""
JITTER_S, JITTER_S_PER_BYTE = 1e-3, 1e-9
"""Differences that a busy machine causes by late wake-ups and slow copies."""


class LinkTimes(Protocol):
    """Latency and rate of a link or of a fitted line."""

    @property
    def latency_s(self) -> float:
        """Duration of an empty message."""

    @property
    def bytes_per_s(self) -> float:
        """Transfer rate."""


def link_matches(requested: LinkSpec, found: LinkTimes) -> bool:
    """Return whether rate and latency are within TOLERANCE of the request, plus TRANSPORT_LATENCY_S."""
    rate_off = abs(found.bytes_per_s - requested.bytes_per_s)
    latency_off_s = abs(found.latency_s - requested.latency_s)
    latency_limit_s = TOLERANCE * requested.latency_s + TRANSPORT_LATENCY_S
    return rate_off <= TOLERANCE * requested.bytes_per_s and latency_off_s <= latency_limit_s


def link_deviations(requested: NetworkSpec, links: Iterable[Link]) -> list[str]:
    """Return a sentence for every emulated link that does not match its request."""
    specs = [(requested.link(link.source, link.target), link) for link in links]
    return [
        f"link {spec.source} -> {spec.target}: asked {spec.mbit_per_s:.3g} Mbit/s and {1e3 * spec.latency_s:.3g} ms, "
        f"measured {link.bytes_per_s / BYTES_PER_MBIT:.3g} Mbit/s and {1e3 * link.latency_s:.3g} ms; is the machine "
        "busy, or an end's share of processor time too small for that rate?"
        for spec, link in specs
        if not link_matches(spec, link)
    ]


def within_tolerance(old: Fleet, new: Fleet, tolerance: float) -> bool:
    """Return whether both fleets have the same devices, and links whose times differ by at most a share `tolerance`.

    Stated properties (engines, image, requested links) must be equal. Links are compared by the predicted times of a
    small and a large message (64 KiB, 4 MiB), plus the errors of both fits and the jitter of a busy machine, which
    hardly matters below 1 Gbit/s. Fitted latencies of microseconds are not compared: they vary by multiples between
    measurements, and plans do not depend on them. The processor time per byte is compared in the same way.
    """
    if not same_devices(old, new):
        return False
    for device in old.devices:
        if not same_link_cpu(device.link_cpu_s_per_byte, new.device(device.name).link_cpu_s_per_byte, tolerance):
            return False
    return all(same_link(link, new.link(link.source, link.target), tolerance) for link in old.links)


def same_devices(old: Fleet, new: Fleet) -> bool:
    """Return whether the devices are equal except for measured values, and all stated properties are equal."""
    stated, now = ((each.engines, each.image, each.emulated_links, each.machines) for each in (old, new))
    if stated != now:
        return False
    before, after = ([_without_measurements(device) for device in fleet.devices] for fleet in (old, new))
    return before == after


def same_link_cpu(old_s: float, new_s: float, tolerance: float) -> bool:
    """Return whether two processor times per byte differ by at most a share `tolerance` plus jitter."""
    return abs(new_s - old_s) <= tolerance * old_s + JITTER_S_PER_BYTE


def same_link(old: Link, new: Link, tolerance: float) -> bool:
    """Return whether two measurements of a link agree within `tolerance` plus the errors of both fits."""
    return same_times(old, new, tolerance + old.fit_error + new.fit_error)


def message_s(link: LinkTimes, size_bytes: int) -> float:
    """Predicted duration of a message."""
    return link.latency_s + size_bytes / link.bytes_per_s


def same_times(old: LinkTimes, new: LinkTimes, share: float) -> bool:
    """Return whether the times of a small and a large message differ by at most `share` plus jitter."""
    for size_bytes in COMPARED_BYTES:
        old_s, new_s = message_s(old, size_bytes), message_s(new, size_bytes)
        if abs(new_s - old_s) > allowed_difference_s(old, size_bytes, share):
            return False
    return True


def allowed_difference_s(old: LinkTimes, size_bytes: int, share: float) -> float:
    """Difference from the stored duration of a message that is no change."""
    return share * message_s(old, size_bytes) + JITTER_S + JITTER_S_PER_BYTE * size_bytes


def _without_measurements(device: Device) -> Device:
    return replace(device, link_cpu_s_per_byte=0.0)
