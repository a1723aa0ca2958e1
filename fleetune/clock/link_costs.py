"""Processor time of messages: encryption takes it from compute threads, delays the first and the last frame of a
message, and keeps the processors busy that devices of a machine share."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from fleetune.contracts.fleet import Device, Fleet

REACHED = 0.9
"""Of the rate that a link is shaped to: a processor would limit one that is slower than this."""


def lost_s_per_byte(device: Device) -> float:
    """Return the compute seconds that a device loses per byte sent or received.

    A worker computes with t threads, and a thread of the link encrypts beside them, `c = link_cpu_s_per_byte` processor
    seconds a byte. Under `cores` for all of them (a container's quota, or a small machine) each thread gets
    min(1, cores / (t + 1)) of a core while the link is at work, as the cores are dealt evenly, so the link is at work
    for c max(1, (t + 1) / cores) seconds a byte. Meanwhile every computing thread gets c processor seconds done, for
    which it would have needed c max(1, t / cores) alone. The difference is lost:

    - a core more than computing threads: nothing, each thread has its own;
    - as many cores as computing threads: c / t;
    - one thread on half a core: 2c, every processor second takes two; on 1.5 cores: c (2 / 1.5 - 1).

    Nothing is lost where an accelerator computes, nor on an emulated device of the process launcher: that holds only
    the computing thread to its pace (`fleetune.launching.process_limits`), and the link works beside it on the
    machine's own cores.
    """
    if not _computes_beside_links(device):
        return 0.0
    busy = max(1.0, (device.threads + 1) / device.cores)
    alone = max(1.0, device.threads / device.cores)
    return device.link_cpu_s_per_byte * (busy - alone)


class FrameSeconds(NamedTuple):
    """Seconds for which a device encrypts or decrypts a byte of a frame."""

    idle: float
    """While it computes nothing."""
    computing: float


def frame_s_per_byte(device: Device) -> FrameSeconds:
    """Return how long the link of a device is at work for a byte, by the same sharing as `lost_s_per_byte`.

    The first frame of a message leaves when it is encrypted, and the last one has arrived when it is decrypted; the
    frames between are encrypted while others are on the way.
    """
    cost = device.link_cpu_s_per_byte
    if not _computes_beside_links(device):
        return FrameSeconds(cost, cost)
    return FrameSeconds(cost * max(1.0, 1 / device.cores), cost * max(1.0, (device.threads + 1) / device.cores))


def ring_cpu_s(fleet: Fleet, members: Sequence[str], summed_bytes: int) -> float:
    """Return how long the processors take that a ring all-reduce keeps busy, at least; 0 where nobody knows.

    A member sends 2(|G|-1)/|G| of the bytes and receives as many. The processor time of all members of a machine goes
    to its cores: links are measured one at a time, but in a ring all of them are at work.
    """
    moved_bytes = 2 * 2 * (len(members) - 1) / len(members) * summed_bytes

    def spent_s(names: Iterable[str]) -> float:
        return moved_bytes * sum(fleet.device(name).link_cpu_s_per_byte for name in names)

    held = [fleet.device(name) for name in members]
    alone = (spent_s([each.name]) / each.cores for each in held if _computes_beside_links(each))
    shared = (spent_s(n for n in members if n in machine.devices) / machine.cores for machine in fleet.machines)
    return max((*alone, *shared), default=0.0)


def links_of_their_own(fleet: Fleet) -> frozenset[tuple[str, str]]:
    """Return the links (source, target) whose messages wait for no others of the two devices: each is shaped to a rate
    of its own, which it reaches. Elsewhere a device sends to one other at a time and receives from one, since what
    limits its links may be its own connection, or its processor.
    """
    asked = fleet.emulated_links
    if asked is None:
        return frozenset()
    return frozenset(
        (link.source, link.target)
        for link in fleet.links
        if link.bytes_per_s >= REACHED * asked.link(link.source, link.target).bytes_per_s
    )


class Ports(NamedTuple):
    """Numbers of the ports that a transfer occupies at its sender and its receiver."""

    egress: int
    ingress: int


def ports(source: int, target: int, devices: int, *, alone: bool) -> Ports:
    """Return those of a transfer between two of so many devices: the devices' own, or, alone, some of its link."""
    own = devices * (1 + source) + target
    return Ports(own, own) if alone else Ports(source, target)


def _computes_beside_links(device: Device) -> bool:
    """Return whether a device computes with the cores, or within the quota, that its links have too."""
    return device.accelerator == "cpu" and not (device.emulated and device.launcher == "process")
