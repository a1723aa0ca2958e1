"""Devices, units, links and subnets of a plan against fleet and profile."""

from collections.abc import Iterator, Sequence

from fleetune.contracts.fleet import Fleet
from fleetune.contracts.plan import Plan
from fleetune.contracts.profile import Profile


def unknown(plan: Plan, fleet: Fleet, profile: Profile) -> Iterator[str]:
    """Devices, units, links and subnets that fleet or profile do not know."""
    yield from _unknown_devices(plan, fleet, profile)
    yield from _unknown_subnets(plan, profile)
    units = {unit.name for unit in profile.units}
    for lane in plan.lanes:
        for index, segment in enumerate(lane.segments):
            for name in segment.units:
                if name not in units:
                    yield f"segment {lane.name}/{index} has unit {name}, which the model does not have"


def units_at_fault(plan: Plan, profile: Profile) -> Iterator[str]:
    """Units that no segment runs, or that stand in another order than the model's."""
    names = [unit.name for unit in profile.units]
    for lane in plan.lanes:
        planned = [name for segment in lane.segments for name in segment.units]
        left_out = [name for name in names if name not in planned]
        if left_out:
            yield (
                f"lane {lane.name} leaves out {len(left_out)} of the model's units ({some(left_out)}); every unit must "
                "run"
            )
        in_order = [name for name in names if name in planned]
        for given, wanted in zip(planned, in_order, strict=True):
            if given != wanted:
                yield (
                    f"lane {lane.name} runs unit {given} where the model has {wanted}; "
                    "segments must be contiguous and in the model's order"
                )
                break


def cut_where_none_may_be(plan: Plan, profile: Profile) -> Iterator[str]:
    """Cuts after units whose output cannot be divided by samples."""
    for lane in plan.lanes:
        for index, segment in enumerate(lane.segments[:-1]):
            last = segment.units[-1]
            if not profile.unit(last).cut_after:
                yield (
                    f"segment {lane.name}/{index} ends after unit {last}, where the model cannot be cut; "
                    "the next unit must stay with it"
                )


def some(names: Sequence[str]) -> str:
    """The first five of a list."""
    return ", ".join(names[:5]) + (" ..." if len(names) > 5 else "")


def _unknown_devices(plan: Plan, fleet: Fleet, profile: Profile) -> Iterator[str]:
    in_fleet = [device.name for device in fleet.devices]
    profiled = [times.device for times in profile.times]
    for device in plan.devices:
        if device not in in_fleet:
            yield f"device {device} is not in the fleet; it has {', '.join(in_fleet)}"
        elif device not in profiled:
            yield f"device {device} has no measured times; profile the fleet again"
    for use in plan.links:
        for name in (use.source, use.target):
            if name not in plan.devices:
                yield (
                    f"link {use.source}>{use.target}: {name} has no part in the plan; its devices are "
                    f"{', '.join(plan.devices)}"
                )


def _unknown_subnets(plan: Plan, profile: Profile) -> Iterator[str]:
    known = {subnet.name for subnet in profile.subnets}
    missing = [gate.subnet for gate in plan.gates if gate.subnet not in known]
    if missing and not known:
        yield (
            f"it has gates of {len(missing)} subnets ({some(missing)}), but the profile has none; profile with scores "
            "(profile.scores=true)"
        )
    elif missing:
        yield f"it has gates of {some(missing)}, of which the profile does not know; it has {some(sorted(known))}"
