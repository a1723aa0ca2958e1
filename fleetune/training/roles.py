"""What follows from a plan beyond its program: who writes checkpoints."""

from fleetune.contracts.plan import Plan
from fleetune.program import seats_of


def savers_of(plan: Plan) -> tuple[str, ...]:
    """Return the devices that write shards of checkpoints: each group's leader, the collector, and those that keep what
    messages lose.

    With a collector, parameters are the same in all lanes: only the first lane's leaders write, their buffers.
    """
    lanes = plan.lanes[:1] if plan.collector else plan.lanes
    leaders = [seat.device for seat in seats_of(plan) if seat.is_leader and seat.lane in lanes]
    fed = [name for name in plan.devices if keeps_residuals(plan, name)]
    return tuple(dict.fromkeys([*leaders, *([plan.collector] if plan.collector else []), *fed]))


def keeps_residuals(plan: Plan, device: str) -> bool:
    """Return whether a device has a link with error feedback to another one."""
    return any(use.feedback and use.source == device for use in plan.links)
