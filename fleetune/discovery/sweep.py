"""Timing a link: payloads of many sizes go out, small answers come back."""

from collections.abc import Callable

from fleetune.discovery.protocol import Probed, Trip

SIZES_BYTES = (0, 1 << 14, 1 << 16, 1 << 18, 1 << 20, 1 << 21, 1 << 22)
"""Between the empty payload and the first of several packets there is none: a packet more or less, which a link that is
held to its rate by tokens gives away, would look like a different rate."""
REPEATS = 15
LEAST_REPEATS = 3
WARM_UPS = 5
LEAST_SIZES = 3
SMALL_SHARE = 8
"""A payload takes at most one in so many bytes of the memory at either end."""


def most_bytes(*memories_bytes: int) -> int:
    """The largest payload that devices of these memories can handle beside all else they hold."""
    least, most = SIZES_BYTES[LEAST_SIZES - 1], SIZES_BYTES[-1]
    return max(least, min(most, *(memory_bytes // SMALL_SHARE for memory_bytes in memories_bytes)))


def sweep(ping: Callable[[int], Trip], budget_s: float, most_bytes: int = SIZES_BYTES[-1]) -> Probed:
    """Time all sizes in turn, REPEATS times over, so that a disturbance spreads over sizes instead of biasing one.

    `ping(n)` sends n bytes and waits for the small answer. Sizes end at `most_bytes`, and on a slow link at the first
    whose bytes take a twentieth of the budget: longer than the empty payload, so that a link with a long latency is
    not taken for a slow one. Three sizes are always timed. After LEAST_REPEATS turns the budget ends it.
    """
    sizes = [size for size in SIZES_BYTES if size <= most_bytes]
    for _ in range(WARM_UPS):
        ping(SIZES_BYTES[0])
    trips: list[list[Trip]] = []
    for size in sizes:
        trips.append([ping(size)])
        if len(trips) >= LEAST_SIZES and trips[-1][0].round_trip_s - trips[0][0].round_trip_s > budget_s / 20:
            break
    spent_s = sum(each[0].round_trip_s for each in trips)
    for turn in range(1, REPEATS):
        if turn >= LEAST_REPEATS and spent_s > budget_s:
            break
        for each, size in zip(trips, sizes, strict=False):
            each.append(ping(size))
            spent_s += each[-1].round_trip_s
    back_s = [trip.back_s for trip in trips[0] if trip.back_s is not None]
    return Probed(
        sizes_bytes=tuple(sizes[: len(trips)]),
        round_trips_s=tuple(tuple(trip.round_trip_s for trip in each) for each in trips),
        sender_cpu_s=tuple(tuple(trip.sender_cpu_s for trip in each) for each in trips),
        receiver_cpu_s=tuple(tuple(trip.receiver_cpu_s for trip in each) for each in trips),
        back_s=tuple(back_s) if len(back_s) == len(trips[0]) else (),
    )
