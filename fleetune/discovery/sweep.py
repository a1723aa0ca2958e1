"""Timing a link: payloads of many sizes go out, small answers come back."""

from collections.abc import Callable

from fleetune.discovery.protocol import Probed, Trip

SIZES_BYTES = (0, 1 << 10, 1 << 13, 1 << 16, 1 << 18, 1 << 20, 1 << 21, 1 << 22)
REPEATS = 15
LEAST_REPEATS = 3
WARM_UPS = 5


def sweep(ping: Callable[[int], Trip], budget_s: float) -> Probed:
    """Time all sizes in turn, REPEATS times over, so that a disturbance spreads over sizes instead of biasing one.

    `ping(n)` sends n bytes and waits for the small answer. On a slow link the sizes end at the first
    that takes a twentieth of the budget (three are always timed), and after LEAST_REPEATS turns the budget ends it.
    """
    for _ in range(WARM_UPS):
        ping(SIZES_BYTES[0])
    trips: list[list[Trip]] = []
    for size in SIZES_BYTES:
        trips.append([ping(size)])
        if len(trips) >= 3 and trips[-1][0].round_trip_s > budget_s / 20:
            break
    spent_s = sum(each[0].round_trip_s for each in trips)
    for turn in range(1, REPEATS):
        if turn >= LEAST_REPEATS and spent_s > budget_s:
            break
        for each, size in zip(trips, SIZES_BYTES, strict=False):
            each.append(ping(size))
            spent_s += each[-1].round_trip_s
    return Probed(
        sizes_bytes=SIZES_BYTES[: len(trips)],
        round_trips_s=tuple(tuple(trip.round_trip_s for trip in each) for each in trips),
        sender_cpu_s=tuple(tuple(trip.sender_cpu_s for trip in each) for each in trips),
        receiver_cpu_s=tuple(tuple(trip.receiver_cpu_s for trip in each) for each in trips),
    )
