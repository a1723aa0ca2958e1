"""Entry points of the checks, and the checks of memory budgets, of data that must stay on their device, and of features
of plans that can be made, timed and drawn, but that workers do not run yet.
"""

from collections.abc import Collection, Iterator

from fleetune.checks.order import order_faults, program_faults
from fleetune.checks.structure import (
    first_names,
    forbidden_cuts,
    gradients_cut_off,
    half_of_shared_weights,
    lanes_trained_apart,
    nothing_to_train,
    overcommitted_shares,
    shared_weights_trained_apart,
    too_few_samples,
    unknown,
    unused_links,
    wrong_backups,
    wrong_units,
)
from fleetune.clock import Clock
from fleetune.clock.costs import PlacedSegment, kept_micro_batches, segments_on
from fleetune.contracts.fleet import Fleet
from fleetune.contracts.plan import Lane, Plan
from fleetune.contracts.profile import Profile
from fleetune.errors import Infeasible, Refused
from fleetune.formatting import exact_size
from fleetune.program.lower import averaging_device


def findings(plan: Plan, fleet: Fleet, profile: Profile) -> tuple[str, ...]:
    """Return one sentence per fault; empty if the plan can run on this fleet.

    Later checks rely on earlier ones: a plan with unknown devices or units is not checked further, nor is memory where
    backups are wrong.
    """
    return tuple((*_malformed(plan, fleet, profile), *_infeasible(plan, fleet, profile)))


def validate(plan: Plan, fleet: Fleet, profile: Profile) -> None:
    """Raise the first finding: Infeasible if memory is short, Refused for every other fault."""
    for finding in _malformed(plan, fleet, profile):
        raise Refused(f"plan: {finding}")
    for finding in _infeasible(plan, fleet, profile):
        raise Infeasible(f"plan: {finding}")


def _malformed(plan: Plan, fleet: Fleet, profile: Profile) -> Iterator[str]:
    faults = list(unknown(plan, fleet, profile))
    yield from faults
    if faults:
        return
    yield from wrong_units(plan, profile)
    yield from forbidden_cuts(plan, profile)
    yield from too_few_samples(plan, profile)
    yield from nothing_to_train(plan, profile)
    yield from gradients_cut_off(plan, profile)
    yield from half_of_shared_weights(plan, profile)
    yield from shared_weights_trained_apart(plan, profile)
    yield from lanes_trained_apart(plan, profile)
    yield from unused_links(plan)
    yield from overcommitted_shares(plan)
    yield from wrong_backups(plan)
    yield from list(order_faults(plan)) or program_faults(plan, profile)


def _infeasible(plan: Plan, fleet: Fleet, profile: Profile) -> Iterator[str]:
    if not any(unknown(plan, fleet, profile)) and not any(wrong_backups(plan)):
        yield from over_memory(plan, fleet, profile)


def over_memory(plan: Plan, fleet: Fleet, profile: Profile) -> Iterator[str]:
    """Yield devices whose peak exceeds their budget; a peak equal to the budget fits."""
    clock = Clock(fleet, profile)
    for device in plan.devices:
        needed = clock.memory_bytes(plan, device)
        missing = needed - fleet.device(device).memory_bytes
        if missing > 0:
            segments = segments_on(plan, device)
            yield (
                f"device {device} lacks {exact_size(missing)} for {_describe_load(plan, device, segments)}: it needs "
                f"{exact_size(needed)}; {_advice(plan, device, segments)}"
            )


def _describe_load(plan: Plan, device: str, segments: list[PlacedSegment]) -> str:
    """Describe what the device has to hold."""
    held = []
    if len(segments) == 1:
        held.append(_describe_segment(plan, device, segments[0]))
    elif segments:
        held.append(f"segments {first_names([str(placed) for placed in segments])}")
    if device == plan.collector:
        held.append("the parameters and optimizer state that it collects")
    return " and ".join(held)


def _describe_segment(plan: Plan, device: str, placed: PlacedSegment) -> str:
    segment = placed.segment
    first, end = segment.span(device)
    kept = kept_micro_batches(plan, device, placed)
    units = f"{segment.units[0]} .. {segment.units[-1]}"
    return f"segment {placed} ({units}, {end - first} samples, {kept} micro-batches kept)"


def _advice(plan: Plan, device: str, segments: list[PlacedSegment]) -> str:
    if not segments:
        return "let a device with more memory collect, or train fewer units"
    ordered = any(order.device == device for order in plan.order)
    earlier = "an order with fewer forwards ahead" if ordered else "a lower warm-up"
    fewer = "fewer units or samples" if len(segments) == 1 else "fewer segments, units or samples"
    return f"give it {fewer}, or {earlier}" + (", or let another device collect" if device == plan.collector else "")


def check_local_data(plan: Plan, profile: Profile, owners: Collection[str]) -> None:
    """Refuse a plan by which samples or labels would leave their device, whose lane begins where no data lie, or by
    which an owner of data would run the middle of another one's lane or gather the others' gradients or parameters.

    What a collector hands out is no such gathering, though in LoLa-DEFT one device alone has trained each part of it.

    owners: devices that have data.
    """
    begun: dict[str, str] = {}
    for lane in plan.lanes:
        for fault in _local_data_faults(lane, profile, owners):
            raise Refused(f"data.local: {fault}")
        owner = lane.segments[0].devices[0]
        if owner in begun:
            raise Refused(
                f"data.local: lanes {begun[owner]} and {lane.name} both begin on {owner}, so its data would count "
                "twice; plan one lane for each device that has data"
            )
        begun[owner] = lane.name
    hub = plan.collector or (averaging_device(plan) if plan.average_every_rounds else None)
    if hub in owners and begun.keys() - {hub}:
        raise Refused(
            f"data.local: {hub} has data of its own and would receive what all others train, which shows what is in "
            "their data; let a device without data collect it (strategy.options.server or helpers)"
        )


def _local_data_faults(lane: Lane, profile: Profile, owners: Collection[str]) -> Iterator[str]:
    owner, *others = dict.fromkeys(device for end in (0, -1) for device in lane.segments[end].devices)
    if others:
        yield (
            f"lane {lane.name} begins and ends on {', '.join((owner, *others))}, so samples or labels would leave "
            f"{owner}; plan its first and its last segment on the device that has its data"
        )
    if owner not in owners:
        yield (
            f"lane {lane.name} begins on {owner}, which has no data; give it a source, or plan no lane there (data "
            f"lie on {', '.join(owners)})"
        )
    middle = [device for segment in lane.segments[1:-1] for device in segment.devices]
    if strangers := [device for device in dict.fromkeys(middle) if device in owners and device != owner]:
        yield (
            f"lane {lane.name} runs through {', '.join(strangers)}, which has data of its own and would receive what "
            f"{owner} trains; let a device without data help"
        )
    if len(lane.segments) > 1 and not any(profile.unit(name).param_bytes for name in lane.segments[0].units):
        yield (
            f"the cut behind segment {lane.name}/0 lies before the first learned layer, so samples would leave {owner} "
            "as they are; cut behind a later unit"
        )


def untrainable_features(plan: Plan) -> tuple[str, ...]:
    """Return what the plan has that no worker runs; empty if it can be trained."""
    if len(plan.lanes) == 1 or plan.collector or plan.average_every_rounds:
        return ()
    return (f"{len(plan.lanes)} lanes that nothing brings together (a collector, or average_every_rounds)",)
