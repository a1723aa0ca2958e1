"""Checks of plans whose lanes train on data that must stay on their device."""

from collections.abc import Collection, Iterator

from fleetune.contracts.plan import Lane, Plan
from fleetune.contracts.profile import Profile
from fleetune.errors import Refused


def check_local_data(plan: Plan, profile: Profile, owners: Collection[str]) -> None:
    """Refuse a plan by which samples or labels would leave their device, or whose lane begins where no data lie.

    owners: devices that have data.
    """
    begun: dict[str, str] = {}
    for lane in plan.lanes:
        for fault in _faults(lane, profile, owners):
            raise Refused(f"data.local: {fault}")
        owner = lane.segments[0].devices[0]
        if owner in begun:
            raise Refused(
                f"data.local: lanes {begun[owner]} and {lane.name} both begin on {owner}, so its data would count "
                "twice; plan one lane for each device that has data"
            )
        begun[owner] = lane.name


def _faults(lane: Lane, profile: Profile, owners: Collection[str]) -> Iterator[str]:
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
    if len(lane.segments) > 1 and not any(profile.unit(name).param_bytes for name in lane.segments[0].units):
        yield (
            f"the cut behind segment {lane.name}/0 lies before the first learned layer, so samples would leave {owner} "
            "as they are; cut behind a later unit"
        )
