"""What a link costs in processor time: encrypting, copying and handing over, on the sending and the receiving side.

During a probe both agents read the processor time of their whole process, all threads included, around every message.
The seconds per byte are the slope from the empty message to a large one; the empty message is the baseline: what every
message costs whatever its size, and what the process spends while it waits (next to nothing: it is woken by events).
"""

from collections.abc import Iterable, Sequence

import numpy as np

from fleetune.contracts.record import record
from fleetune.discovery.protocol import Probed

LEAST_BYTES = 1 << 16
"""Smaller messages cost too little to tell from the price of being woken."""


@record
class LinkProbe:
    """A probe, and between whom."""

    source: str
    target: str
    probed: Probed


def link_cpu_s_per_byte(device: str, probes: Iterable[LinkProbe]) -> float:
    """Processor seconds per byte that the device sends or receives, the mean of both.

    Each is the median over the large messages of all its links. 0 where no link is fast enough for large messages:
    such links carry too little to keep a processor busy.
    """
    sent: list[float] = []
    received: list[float] = []
    for probe in probes:
        if probe.source == device:
            sent += _slopes(probe.probed.sizes_bytes, probe.probed.sender_cpu_s)
        elif probe.target == device:
            received += _slopes(probe.probed.sizes_bytes, probe.probed.receiver_cpu_s)
    sides = [float(np.median(side)) for side in (sent, received) if side]
    return max(0.0, float(np.mean(sides))) if sides else 0.0


def _slopes(sizes_bytes: Sequence[int], cpu_s: Sequence[Sequence[float]]) -> list[float]:
    """Seconds per byte of each large size; `cpu_s[i]` are the repeats of `sizes_bytes[i]`, the first of them empty."""
    typical_s = [float(np.median(repeats)) for repeats in cpu_s]
    return [
        (spent_s - typical_s[0]) / size
        for size, spent_s in zip(sizes_bytes, typical_s, strict=False)
        if size >= LEAST_BYTES
    ]
