"""Devices and units of a plan against fleet and profile."""

from collections.abc import Iterator

from fleetune.contracts.fleet import Fleet
from fleetune.contracts.plan import Plan
from fleetune.contracts.profile import Profile


def unknown(plan: Plan, fleet: Fleet, profile: Profile) -> Iterator[str]:
    """Devices, units, links and subnets that fleet or profile do not know."""
    in_fleet = [device.name for device in fleet.devices]
    profiled = [times.device for times in profile.times]
    for device in plan.devices:
        if device not in in_fleet:
            yield f"device {device} is not in the fleet; it has {', '.join(in_fleet)}"
        elif device not in profiled:
            yield f"device {device} has no measured times; profile the fleet again"
    for use in plan.links:
        if use.source not in plan.devices or use.target not in plan.devices:
            yield f"link {use.source}>{use.target} joins a device that has no part in it"
    subnets = {subnet.name for subnet in profile.subnets}
    for gate in plan.gates:
        if gate.subnet not in subnets:
            yield f"gate of {gate.subnet}: the profile has no such subnet; profile with scores (profile.scores=true)"
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
            some = ", ".join(left_out[:5]) + (" ..." if len(left_out) > 5 else "")
            yield f"lane {lane.name} leaves out {len(left_out)} of the model's units ({some}); every unit must run"
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
