"""Does every device hold what it is given?"""

from collections.abc import Iterator

from fleetune.checks.structure import some
from fleetune.clock import Clock
from fleetune.clock.memory import kept_micro_batches
from fleetune.contracts.fleet import Fleet
from fleetune.contracts.plan import Plan, Segment
from fleetune.contracts.profile import Profile

Seat = tuple[tuple[str, int], Segment]
"""Lane and number of a segment, and the segment."""


def over_memory(plan: Plan, fleet: Fleet, profile: Profile) -> Iterator[str]:
    """Devices whose peak exceeds their budget; a peak equal to the budget fits."""
    clock = Clock(fleet, profile)
    for device in plan.devices:
        needed = clock.memory_bytes(plan, device)
        missing = needed - fleet.device(device).memory_bytes
        if missing > 0:
            seats = _seats(plan, device)
            yield (
                f"device {device} lacks {_amount(missing)} for {_what(plan, device, seats)}: it needs "
                f"{_amount(needed)}; {_advice(plan, device, seats)}"
            )


def _seats(plan: Plan, device: str) -> list[Seat]:
    return [
        ((lane.name, index), segment)
        for lane in plan.lanes
        for index, segment in enumerate(lane.segments)
        if device in segment.devices
    ]


def _what(plan: Plan, device: str, seats: list[Seat]) -> str:
    """What it has to hold, in words."""
    held = []
    if len(seats) == 1:
        held.append(_segment(plan, device, seats[0]))
    elif seats:
        held.append(f"segments {some([f'{lane}/{index}' for (lane, index), _ in seats])}")
    if device == plan.collector:
        held.append("the parameters and optimizer state that it collects")
    return " and ".join(held)


def _segment(plan: Plan, device: str, seat: Seat) -> str:
    place, segment = seat
    first, end = segment.span(device)
    kept = kept_micro_batches(plan, device, place, segment.warmup)
    units = f"{segment.units[0]} .. {segment.units[-1]}"
    return f"segment {place[0]}/{place[1]} ({units}, {end - first} samples, {kept} micro-batches kept)"


def _advice(plan: Plan, device: str, seats: list[Seat]) -> str:
    if not seats:
        return "let a device with more memory collect, or train fewer units"
    ordered = any(order.device == device for order in plan.order)
    earlier = "an order with fewer forwards ahead" if ordered else "a lower warm-up"
    fewer = "fewer units or samples" if len(seats) == 1 else "fewer segments, units or samples"
    return f"give it {fewer}, or {earlier}" + (", or let another device collect" if device == plan.collector else "")


def _amount(size: int) -> str:
    return f"{size} bytes" if size < 10**6 else f"{size / 1e6:.0f} MB ({size} bytes)"
