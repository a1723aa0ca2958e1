"""What of the plan language the workers can run so far."""

from collections.abc import Iterator

from fleetune.contracts.plan import Lane, Plan
from fleetune.errors import Refused


def prove_able(plan: Plan) -> None:
    """Refuse plans that the workers would not obey, by all that they have beyond a chain of segments. Fields with
    neutral values are nothing: workers that do not know them do what is meant."""
    found = list(_beyond(plan))
    if found:
        raise Refused(
            f"plan: strategy {plan.strategy} made it with {', '.join(found)}; training runs one lane of segments, each "
            "on devices of its own, over whole and dense links; look at this plan with --until plan, or train with "
            "another strategy"
        )


def _beyond(plan: Plan) -> Iterator[str]:
    if len(plan.lanes) > 1:
        yield f"{len(plan.lanes)} lanes"
    if any(_returning(lane) for lane in plan.lanes):
        yield "devices in several segments"
    if any(segment.trained != segment.units for lane in plan.lanes for segment in lane.segments):
        yield "segments that train a part of their units"
    if not all(use.is_neutral for use in plan.links):
        yield "thin or shared links"
    if not all(gate.is_neutral for gate in plan.gates):
        yield "gates"
    if plan.collector:
        yield f"a collector ({plan.collector})"


def _returning(lane: Lane) -> bool:
    devices = [device for segment in lane.segments for device in segment.devices]
    return len(set(devices)) < len(devices)
