"""Does every device hold what it is given?"""

from collections.abc import Iterator

from fleetune.clock import Clock
from fleetune.contracts.fleet import Fleet
from fleetune.contracts.plan import Plan
from fleetune.contracts.profile import Profile


def over_memory(plan: Plan, fleet: Fleet, profile: Profile) -> Iterator[str]:
    """Devices whose peak exceeds their budget; a peak equal to the budget fits."""
    clock = Clock(fleet, profile)
    for device in plan.devices:
        needed = clock.memory_bytes(plan, device)
        missing = needed - fleet.device(device).memory_bytes
        if missing > 0:
            yield (
                f"device {device} lacks {_amount(missing)} for {_what(plan, device)}: it needs {_amount(needed)}; give "
                "it fewer units or samples, or a lower warm-up"
            )


def _what(plan: Plan, device: str) -> str:
    """What it has to hold, in words."""
    seats = [
        (f"{lane.name}/{index}", segment)
        for lane in plan.lanes
        for index, segment in enumerate(lane.segments)
        if device in segment.devices
    ]
    if len(seats) != 1:
        names = ", ".join(name for name, _ in seats[:5]) + (" ..." if len(seats) > 5 else "")
        return f"segments {names}" if seats else "the parameters that it collects"
    name, segment = seats[0]
    first, end = segment.span(device)
    kept = min(segment.warmup, plan.micro_batches)
    return (
        f"segment {name} ({segment.units[0]} .. {segment.units[-1]}, {end - first} samples, {kept} micro-batches kept)"
    )


def _amount(size: int) -> str:
    return f"{size} bytes" if size < 10**6 else f"{size / 1e6:.0f} MB ({size} bytes)"
