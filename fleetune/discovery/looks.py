"""Several looks at the same thing: probes taken together, and one taken apart to see whether it agrees with itself."""

from collections.abc import Callable, Sequence
from dataclasses import replace

from fleetune.discovery.protocol import Probed

LEAST_HALF = 3
"""Repeats below which half a probe says too little."""
Repeats = Sequence[Sequence[float]]


def pooled(probes: Sequence[Probed]) -> Probed:
    """One probe with the repeats of all, over the sizes that all of them have."""
    sizes = min(len(probe.sizes_bytes) for probe in probes)

    def together(rows: list[Repeats]) -> tuple[tuple[float, ...], ...]:
        if not all(rows):
            return ()
        return tuple(tuple(time for row in rows for time in row[index]) for index in range(sizes))

    return Probed(
        sizes_bytes=probes[0].sizes_bytes[:sizes],
        round_trips_s=together([probe.round_trips_s for probe in probes]),
        sender_cpu_s=together([probe.sender_cpu_s for probe in probes]),
        receiver_cpu_s=together([probe.receiver_cpu_s for probe in probes]),
        back_s=tuple(s for probe in probes for s in probe.back_s) if all(probe.back_s for probe in probes) else (),
    )


def halves(probed: Probed) -> tuple[Probed, Probed] | None:
    """The earlier and the later repeats of a probe; None where half of them would be too few."""
    half = len(probed.round_trips_s[0]) // 2
    if half < LEAST_HALF:
        return None
    return _part(probed, lambda row: row[:half]), _part(probed, lambda row: row[half:])


def _part(probed: Probed, cut: Callable[[Sequence[float]], Sequence[float]]) -> Probed:
    def rows(repeats: Repeats) -> tuple[tuple[float, ...], ...]:
        return tuple(tuple(cut(row)) for row in repeats)

    return replace(
        probed,
        round_trips_s=rows(probed.round_trips_s),
        sender_cpu_s=rows(probed.sender_cpu_s),
        receiver_cpu_s=rows(probed.receiver_cpu_s),
        back_s=tuple(cut(probed.back_s)),
    )
