"""What of the plan language the workers can run so far."""

from fleetune.contracts.plan import Plan
from fleetune.errors import Refused


def prove_able(plan: Plan) -> None:
    """Refuse plans that the workers would not obey, by all that they have beyond a chain of segments."""
    if plan.is_chain:
        return
    has = {
        f"{len(plan.lanes)} lanes": len(plan.lanes) > 1,
        "devices in several segments": any(_returning(plan)),
        "segments that train a part of their units": any(s.trains for lane in plan.lanes for s in lane.segments),
        "thin or shared links": bool(plan.links),
        "gates": bool(plan.gates),
        f"a collector ({plan.collector})": bool(plan.collector),
    }
    found = ", ".join(what for what, given in has.items() if given)
    raise Refused(
        f"plan: strategy {plan.strategy} made it with {found}; training runs one lane of segments, each on devices of its "
        "own, over whole and dense links; look at this plan with --until plan, or train with another strategy"
    )


def _returning(plan: Plan) -> list[bool]:
    names = [[d for segment in lane.segments for d in segment.devices] for lane in plan.lanes]
    return [len(set(devices)) < len(devices) for devices in names]
