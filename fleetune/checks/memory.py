"""Does every device hold what it is given?"""

from collections.abc import Iterator

from fleetune.clock import Clock
from fleetune.contracts.fleet import Fleet
from fleetune.contracts.plan import Plan
from fleetune.contracts.profile import Profile


def over_memory(plan: Plan, fleet: Fleet, profile: Profile) -> Iterator[str]:
    """Devices whose peak exceeds their budget; a peak equal to the budget fits."""
    clock = Clock(fleet, profile)
    for lane in plan.lanes:
        for index, segment in enumerate(lane.segments):
            for share in segment.shares:
                needed = clock.memory_bytes(plan, segment, share.device)
                missing = needed - fleet.device(share.device).memory_bytes
                if missing > 0:
                    kept = min(segment.warmup, plan.micro_batches)
                    yield (
                        f"device {share.device} lacks {_amount(missing)} for segment {lane.name}/{index} "
                        f"({segment.units[0]} .. {segment.units[-1]}, {share.samples} samples, {kept} micro-batches "
                        f"kept): it needs {_amount(needed)}; give it fewer units or samples, or a lower warm-up"
                    )


def _amount(size: int) -> str:
    return f"{size} bytes" if size < 10**6 else f"{size / 1e6:.0f} MB ({size} bytes)"
