"""Whether a new measurement still describes the stored fleet."""

from dataclasses import replace

from fleetune.contracts.fleet import Device, Fleet, Link
from fleetune.discovery.emulation import Measured

COMPARED_BYTES = (1 << 16, 1 << 22)
JITTER_S, JITTER_S_PER_BYTE = 1e-3, 1e-9
"""Differences below this are those of a busy machine, not of the link: wake-ups, and copying at half speed."""


def within_tolerance(old: Fleet, new: Fleet, tolerance: float) -> bool:
    """Whether both have the same devices and every link takes the same time, but for a share of `tolerance`.

    What was stated (engines, image, what links are held to) must be the same altogether.

    Two fitted latencies of microseconds differ by a multiple from one minute to the next and mean nothing; what a plan
    feels is the time of a message. So the predicted times of a small and a large one (64 KiB, 4 MiB) are compared, with
    the fits' own errors and the jitter of a busy machine allowed for (links below 1 Gbit/s hardly notice that).
    What a byte costs a device's processor is measured too, and compared alike: by share, with the same jitter per byte.
    """
    if not same_devices(old, new):
        return False
    for device in old.devices:
        if not same_link_cpu(device.link_cpu_s_per_byte, new.device(device.name).link_cpu_s_per_byte, tolerance):
            return False
    return all(same_link(link, new.link(link.source, link.target), tolerance) for link in old.links)


def same_devices(old: Fleet, new: Fleet) -> bool:
    """Whether all that does not change from minute to minute is the same: the devices, and whatever was stated."""
    if (old.engines, old.image, old.emulated_links) != (new.engines, new.image, new.emulated_links):
        return False
    return [_lasting(device) for device in old.devices] == [_lasting(device) for device in new.devices]


def same_link_cpu(old_s: float, new_s: float, tolerance: float) -> bool:
    """Whether a byte costs a processor as much, by share, with the jitter of a busy machine allowed for."""
    return abs(new_s - old_s) <= tolerance * old_s + JITTER_S_PER_BYTE


def same_link(old: Link, new: Link, tolerance: float) -> bool:
    """Whether a link takes the same time, with the fits' own errors allowed for."""
    return same_times(old, new, tolerance + old.fit_error + new.fit_error)


def same_times(old: Measured, new: Measured, share: float) -> bool:
    """Whether a small and a large message take the same time, but for a share of it and the jitter."""
    for size_bytes in COMPARED_BYTES:
        old_s, new_s = (found.latency_s + size_bytes / found.bytes_per_s for found in (old, new))
        if abs(new_s - old_s) > share * old_s + JITTER_S + JITTER_S_PER_BYTE * size_bytes:
            return False
    return True


def _lasting(device: Device) -> Device:
    """The device without what is measured."""
    return replace(device, link_cpu_s_per_byte=0.0)
