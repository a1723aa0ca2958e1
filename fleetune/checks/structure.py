"""Checks of a plan's devices, units, links, gates and trained units against fleet and profile."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import pairwise

from fleetune.contracts.fleet import Fleet
from fleetune.contracts.plan import Lane, Plan, Segment
from fleetune.contracts.profile import Profile
from fleetune.program import sample_transfers


def unknown(plan: Plan, fleet: Fleet, profile: Profile) -> Iterator[str]:
    """Yield devices, units, links and subnets that are missing in fleet or profile."""
    yield from _unknown_devices(plan, fleet, profile)
    yield from _unknown_subnets(plan, profile)
    units = {unit.name for unit in profile.units}
    for lane in plan.lanes:
        for index, segment in enumerate(lane.segments):
            for name in segment.units:
                if name not in units:
                    yield f"segment {lane.name}/{index} has unit {name}, which the model does not have"


def wrong_units(plan: Plan, profile: Profile) -> Iterator[str]:
    """Yield units that no segment runs, or that are not in the model's order."""
    names = [unit.name for unit in profile.units]
    for lane in plan.lanes:
        planned = [name for segment in lane.segments for name in segment.units]
        left_out = [name for name in names if name not in planned]
        if left_out:
            yield (
                f"lane {lane.name} leaves out {len(left_out)} of the model's units ({first_names(left_out)}); "
                "every unit must run"
            )
        in_order = [name for name in names if name in planned]
        for given, wanted in zip(planned, in_order, strict=True):
            if given != wanted:
                yield (
                    f"lane {lane.name} runs unit {given} where the model has {wanted}; "
                    "segments must be contiguous and in the model's order"
                )
                break


def forbidden_cuts(plan: Plan, profile: Profile) -> Iterator[str]:
    """Yield cuts after units whose output cannot be split by samples."""
    for lane in plan.lanes:
        for index, segment in enumerate(lane.segments[:-1]):
            last = segment.units[-1]
            if not profile.unit(last).cut_after:
                yield (
                    f"segment {lane.name}/{index} ends after unit {last}, where the model cannot be cut; "
                    "the next unit must stay with it"
                )


def too_few_samples(plan: Plan, profile: Profile) -> Iterator[str]:
    """Yield groups that share what one device must run alone, and devices with fewer samples of a segment than one of
    its units can be trained on."""
    least = {unit.name: unit.min_samples for unit in profile.units}
    for lane in plan.lanes:
        for index, segment in enumerate(lane.segments):
            neediest = max(segment.units, key=lambda name: least.get(name, 1))
            needed = least.get(neediest, 1)
            if len(segment.shares) > 1 and needed >= plan.micro_batch_samples:
                yield (
                    f"{', '.join(segment.devices)} share the samples of segment {lane.name}/{index}, but unit "
                    f"{neediest} needs the whole micro-batch on one device, for its batch norms or random draws; give "
                    "the segment to one"
                )
                continue
            for share in segment.shares:
                if share.samples < needed:
                    yield (
                        f"device {share.device} has {share.samples} of every {plan.micro_batch_samples} samples of "
                        f"segment {lane.name}/{index}, but unit {neediest} needs at least {needed} on each "
                        "device to be trained; give it so many or more, or leave it out of the segment"
                    )


def first_names(names: Sequence[str]) -> str:
    """Join the first five names, and mark omissions with `...`."""
    return ", ".join(names[:5]) + (" ..." if len(names) > 5 else "")


def _unknown_devices(plan: Plan, fleet: Fleet, profile: Profile) -> Iterator[str]:
    in_fleet = [device.name for device in fleet.devices]
    profiled = [times.device for times in profile.times]
    for device in plan.devices:
        if device not in in_fleet:
            yield f"device {device} is not in the fleet; it has {', '.join(in_fleet)}"
        elif device not in profiled:
            yield f"device {device} has no measured times; profile the fleet again"
    if plan.averager and plan.averager not in plan.devices:
        yield (
            f"its averager {plan.averager} has no part in it; name one of {', '.join(plan.devices)}, or none, and the "
            "device that trains most units averages"
        )
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
            f"it has gates of {len(missing)} subnets ({first_names(missing)}), but the profile has none; "
            "profile with scores (profile.scores=true)"
        )
    elif missing:
        yield (
            f"it has gates of {first_names(missing)}, which the profile does not have; "
            f"it has {first_names(sorted(known))}"
        )


def wrong_backups(plan: Plan) -> Iterator[str]:
    """Yield backups of what the plan does not have, and backups that no loss of a device leaves: those whose holder is
    not in the plan, or trains the segment alone.
    """
    owners = {f"{lane.name}/{k}": segment.devices for lane in plan.lanes for k, segment in enumerate(lane.segments)}
    for backup in plan.backups:
        place = f"{backup.lane}/{backup.segment}" if backup.lane else "the collector"
        own = owners.get(place) if backup.lane else (plan.collector,) if plan.collector else None
        if own is None:
            yield f"it has a backup of {place}, which is no part of it; its segments are {first_names([*owners])}"
        elif backup.holder not in plan.devices:
            yield (
                f"the backup of {place} is on {backup.holder}, which has no part in the plan; let one of "
                f"{', '.join(plan.devices)} hold it"
            )
        elif own == (backup.holder,):
            yield (
                f"the backup of {place} is on {backup.holder}, which alone trains it, so both would be lost together; "
                "let another device hold it"
            )


_ROUNDING = 1e-6
"""Tolerance for sums of shares."""


def unused_links(plan: Plan) -> Iterator[str]:
    """Yield links with a codec or share over which the plan sends nothing."""
    crossed = set[tuple[str, str]]()
    for lane in plan.lanes:
        for low, high in pairwise(lane.segments):
            for each in sample_transfers(low, high):
                crossed |= {(each.source, each.target), (each.target, each.source)}
    if plan.collector:
        crossed |= {pair for name in plan.devices for pair in ((plan.collector, name), (name, plan.collector))}
    for use in plan.links:
        if (use.source, use.target) not in crossed and not use.is_neutral:
            yield (
                f"link {use.source}>{use.target} has a codec or share, but nothing crosses it; leave it "
                "out, or correct its ends"
            )


def overcommitted_shares(plan: Plan) -> Iterator[str]:
    """Yield devices whose outgoing or incoming links have shares that sum to more than 1."""
    out_of, into = defaultdict[str, float](float), defaultdict[str, float](float)
    for use in plan.links:
        if use.share < 1.0:
            out_of[use.source] += use.share
            into[use.target] += use.share
    for words, sums in (("out of", out_of), ("into", into)):
        for device, total in sums.items():
            if total > 1 + _ROUNDING:
                yield f"links {words} {device} have shares of {total:.4g} together; a medium has 1 to give"


def nothing_to_train(plan: Plan, profile: Profile) -> Iterator[str]:
    """Yield segments that name trained units of which none has a trainable parameter."""
    for lane in plan.lanes:
        for index, segment in enumerate(lane.segments):
            if segment.trains and not _has_trainable(segment, profile):
                yield (
                    f"segment {lane.name}/{index} is to train {first_names(segment.trains)}, which have no trainable "
                    "parameters; name units that do, or leave it out to train all"
                )


def half_of_shared_weights(plan: Plan, profile: Profile) -> Iterator[str]:
    """Yield segments that train a unit whose weight another of their units reads below the end of the backward."""
    for lane in plan.lanes:
        for index, segment in enumerate(lane.segments):
            first = segment.units.index(segment.trained[0])
            below = {tied: name for name in segment.units[:first] for tied in profile.unit(name).tied}
            for name in segment.trained:
                shared = [below[tied] for tied in profile.unit(name).tied if tied in below]
                if shared:
                    yield (
                        f"segment {lane.name}/{index} trains {name}, whose weight is that of {shared[0]}, too, which "
                        f"its backward does not reach; train {shared[0]} too, or leave {name} out"
                    )


def shared_weights_trained_apart(plan: Plan, profile: Profile) -> Iterator[str]:
    """Yield weights that one segment of a lane trains and another one holds and does not."""
    for lane in plan.lanes:
        for name in sorted({tied for unit in profile.units for tied in unit.tied}):
            holding = [k for k, segment in enumerate(lane.segments) if _reads(segment.units, name, profile)]
            training = [k for k in holding if _reads(lane.segments[k].trained, name, profile)]
            if training and training != holding:
                other = next(k for k in holding if k not in training)
                yield (
                    f"segment {lane.name}/{training[0]} trains {name}, which segment {lane.name}/{other} reads and "
                    "does not train; let both train the units that read it, or neither"
                )


def _reads(units: Sequence[str], tied: str, profile: Profile) -> bool:
    return any(tied in profile.unit(name).tied for name in units)


def lanes_trained_apart(plan: Plan, profile: Profile) -> Iterator[str]:
    """Yield lanes that train other units than the first one, where all of them are averaged."""
    if not plan.average_every_rounds:
        return
    first, *others = (_trained(lane, profile) for lane in plan.lanes)
    for lane, found in zip(plan.lanes[1:], others, strict=True):
        if found != first:
            yield (
                f"lane {lane.name} and lane {plan.lanes[0].name} do not train the same units "
                f"({first_names(sorted(found ^ first))}), and their parameters are averaged; let all lanes train the "
                "same units, or a collector bring them together"
            )


def _trained(lane: Lane, profile: Profile) -> set[str]:
    names = {name for segment in lane.segments for name in segment.trained}
    return {name for name in names if profile.unit(name).trainable_bytes}


def gradients_cut_off(plan: Plan, profile: Profile) -> Iterator[str]:
    """Yield segments that train units below a segment whose backward ends before its first unit."""
    for lane in plan.lanes:
        for index in range(len(lane.segments) - 1, 0, -1):
            segment = lane.segments[index]
            below = [f"{lane.name}/{k}" for k in range(index) if _has_trainable(lane.segments[k], profile)]
            if below and segment.trained[0] != segment.units[0]:
                yield (
                    f"segment {lane.name}/{index} ends its backward at unit {segment.trained[0]}, so no gradient "
                    f"reaches segment {below[-1]}, which is to train; train {segment.units[0]} too, or nothing below"
                )
                break


def _has_trainable(segment: Segment, profile: Profile) -> bool:
    return any(profile.unit(name).trainable_bytes for name in segment.trained)
