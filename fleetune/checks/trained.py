"""What segments say they train: is there anything, and does a gradient get there?"""

from collections.abc import Iterator

from fleetune.checks.structure import some
from fleetune.contracts.plan import Lane, Plan, Segment
from fleetune.contracts.profile import Profile


def nothing_to_train(plan: Plan, profile: Profile) -> Iterator[str]:
    """Segments that name what they train, and none of it has a trainable parameter."""
    for lane in plan.lanes:
        for index, segment in enumerate(lane.segments):
            if segment.trains and not _has_trainable(segment, profile):
                yield (
                    f"segment {lane.name}/{index} is to train {some(segment.trains)}, which have no trainable "
                    "parameters; name units that do, or leave it out to train all"
                )


def gradients_cut_off(plan: Plan, profile: Profile) -> Iterator[str]:
    """Segments that are to train, below one whose backward ends at a unit that is not its first."""
    for lane in plan.lanes:
        for index in range(len(lane.segments) - 1, 0, -1):
            segment, below = lane.segments[index], _trained_below(lane, index, profile)
            if below and segment.trained[0] != segment.units[0]:
                yield (
                    f"segment {lane.name}/{index} ends its backward at unit {segment.trained[0]}, so no gradient "
                    f"reaches segment {below[-1]}, which is to train; train {segment.units[0]} too, or nothing below"
                )
                break


def _trained_below(lane: Lane, index: int, profile: Profile) -> list[str]:
    return [f"{lane.name}/{k}" for k in range(index) if _has_trainable(lane.segments[k], profile)]


def _has_trainable(segment: Segment, profile: Profile) -> bool:
    return any(profile.unit(name).trainable_bytes for name in segment.trained)
