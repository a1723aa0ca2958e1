"""Link probes: round trips of payloads of many sizes, and the processor time that they cost.

During a probe both agents read the processor time of their whole process, all threads included, around every message.
Processor seconds per byte are the slope from the empty message to a large one. The empty message is the baseline: the
fixed cost of a message, and what the process spends while it waits.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from fleetune.contracts.record import record

SIZES_BYTES = (0, 1 << 14, 1 << 16, 1 << 18, 1 << 20, 1 << 21, 1 << 22)
"""Payload sizes. None lies between the empty payload and several packets: a link that is shaped by tokens passes one
packet more or less for free, which would look like another rate."""
REPEATS = 15
MIN_REPEATS = 3
WARM_UPS = 5
MIN_SIZES = 3
MEMORY_DIVISOR = 8
"""A payload takes at most this fraction of the memory at either end."""
MIN_HALF_REPEATS = 3
"""Minimum repeats in half a probe."""
MIN_CPU_BYTES = 1 << 16
"""Minimum payload for processor time; waking up dominates the cost of smaller messages."""
Repeats = Sequence[Sequence[float]]


@record
class ProbeRequest:
    """Order to an agent to probe the link to a peer."""

    peer: str
    budget_s: float
    most_bytes: int
    """Largest payload that both ends have memory for."""
    one_clock: bool = False
    """True if both ends run on one machine, whose clock can time both directions separately."""


class RoundTrip(NamedTuple):
    """Timing of one payload and its small answer."""

    round_trip_s: float
    sender_cpu_s: float
    """Processor time of the sender's whole process."""
    receiver_cpu_s: float
    back_s: float | None = None
    """Part of `round_trip_s` that the answer took; None without a common clock."""


@record
class ProbeResult:
    """Measured round trips: `round_trips_s[i]` are the repeats for a payload of `sizes_bytes[i]`."""

    sizes_bytes: tuple[int, ...]
    round_trips_s: tuple[tuple[float, ...], ...]
    sender_cpu_s: tuple[tuple[float, ...], ...] = ()
    """Processor time of the sending agent for each of them; empty if not measured."""
    receiver_cpu_s: tuple[tuple[float, ...], ...] = ()
    """Processor time of the answering agent for each of them; empty if not measured."""
    back_s: tuple[float, ...] = ()
    """Duration of the answers to empty payloads; empty without a common clock."""


@record
class LinkProbe:
    """Probe result of a directed link."""

    source: str
    target: str
    probed: ProbeResult


def max_payload_bytes(*memories_bytes: int) -> int:
    """Largest payload for devices with these memories, at least the MIN_SIZES-th size."""
    least, most = SIZES_BYTES[MIN_SIZES - 1], SIZES_BYTES[-1]
    return max(least, min(most, *(memory_bytes // MEMORY_DIVISOR for memory_bytes in memories_bytes)))


def sweep(ping: Callable[[int], RoundTrip], budget_s: float, most_bytes: int = SIZES_BYTES[-1]) -> ProbeResult:
    """Time all sizes in turn, REPEATS times over, so that a disturbance spreads over sizes instead of biasing one.

    `ping(n)` sends n bytes and waits for the small answer. Sizes end at `most_bytes`, and on a slow link at the first
    one that takes a twentieth of the budget longer than the empty payload (not: a twentieth in all, which a long
    latency would exceed). At least three sizes are timed. After MIN_REPEATS turns the sweep stops when `budget_s` is
    spent.
    """
    sizes = [size for size in SIZES_BYTES if size <= most_bytes]
    for _ in range(WARM_UPS):
        ping(SIZES_BYTES[0])
    trips: list[list[RoundTrip]] = []
    for size in sizes:
        trips.append([ping(size)])
        if len(trips) >= MIN_SIZES and trips[-1][0].round_trip_s - trips[0][0].round_trip_s > budget_s / 20:
            break
    spent_s = sum(each[0].round_trip_s for each in trips)
    for turn in range(1, REPEATS):
        if turn >= MIN_REPEATS and spent_s > budget_s:
            break
        for each, size in zip(trips, sizes, strict=False):
            each.append(ping(size))
            spent_s += each[-1].round_trip_s
    back_s = [trip.back_s for trip in trips[0] if trip.back_s is not None]
    return ProbeResult(
        sizes_bytes=tuple(sizes[: len(trips)]),
        round_trips_s=tuple(tuple(trip.round_trip_s for trip in each) for each in trips),
        sender_cpu_s=tuple(tuple(trip.sender_cpu_s for trip in each) for each in trips),
        receiver_cpu_s=tuple(tuple(trip.receiver_cpu_s for trip in each) for each in trips),
        back_s=tuple(back_s) if len(back_s) == len(trips[0]) else (),
    )


def pool_probes(probes: Sequence[ProbeResult]) -> ProbeResult:
    """Combine the repeats of several probes, over the sizes that all of them have."""
    sizes = min(len(probe.sizes_bytes) for probe in probes)

    def together(rows: list[Repeats]) -> tuple[tuple[float, ...], ...]:
        if not all(rows):
            return ()
        return tuple(tuple(time for row in rows for time in row[index]) for index in range(sizes))

    return ProbeResult(
        sizes_bytes=probes[0].sizes_bytes[:sizes],
        round_trips_s=together([probe.round_trips_s for probe in probes]),
        sender_cpu_s=together([probe.sender_cpu_s for probe in probes]),
        receiver_cpu_s=together([probe.receiver_cpu_s for probe in probes]),
        back_s=tuple(s for probe in probes for s in probe.back_s) if all(probe.back_s for probe in probes) else (),
    )


def split_halves(probed: ProbeResult) -> tuple[ProbeResult, ProbeResult] | None:
    """Split a probe into its earlier and later repeats; None if a half has fewer than MIN_HALF_REPEATS."""
    half = len(probed.round_trips_s[0]) // 2
    if half < MIN_HALF_REPEATS:
        return None
    return _slice_repeats(probed, lambda row: row[:half]), _slice_repeats(probed, lambda row: row[half:])


def _slice_repeats(probed: ProbeResult, cut: Callable[[Sequence[float]], Sequence[float]]) -> ProbeResult:
    def rows(repeats: Repeats) -> tuple[tuple[float, ...], ...]:
        return tuple(tuple(cut(row)) for row in repeats)

    return replace(
        probed,
        round_trips_s=rows(probed.round_trips_s),
        sender_cpu_s=rows(probed.sender_cpu_s),
        receiver_cpu_s=rows(probed.receiver_cpu_s),
        back_s=tuple(cut(probed.back_s)),
    )


def link_cpu_s_per_byte(device: str, probes: Iterable[LinkProbe]) -> float:
    """Processor seconds per byte that the device sends or receives: the mean of both directions.

    Each direction is the median over the large messages of all links of the device. 0 if no link is fast enough for
    large messages; such links carry too little to load a processor.
    """
    sent: list[float] = []
    received: list[float] = []
    for probe in probes:
        if probe.source == device:
            sent += _slopes_s_per_byte(probe.probed.sizes_bytes, probe.probed.sender_cpu_s)
        elif probe.target == device:
            received += _slopes_s_per_byte(probe.probed.sizes_bytes, probe.probed.receiver_cpu_s)
    sides = [float(np.median(side)) for side in (sent, received) if side]
    return max(0.0, float(np.mean(sides))) if sides else 0.0


def _slopes_s_per_byte(sizes_bytes: Sequence[int], cpu_s: Repeats) -> list[float]:
    """Seconds per byte of each large size; `cpu_s[i]` are the repeats of `sizes_bytes[i]`, the first of them empty."""
    typical_s = [float(np.median(repeats)) for repeats in cpu_s]
    return [
        (spent_s - typical_s[0]) / size
        for size, spent_s in zip(sizes_bytes, typical_s, strict=False)
        if size >= MIN_CPU_BYTES
    ]
