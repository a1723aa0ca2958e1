"""Plans of rounds that differ from most others: lanes rest until the next average, or all subnets run in full."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise

from fleetune.contracts.plan import DeviceOrder, Plan, parse_action


def partial_rounds(plan: Plan) -> Iterator[tuple[int, Plan]]:
    """Yield, for each kind of round in which lanes rest, their number between two averages and the plan without these
    lanes."""
    ends = sorted({lane.rounds or plan.average_every_rounds for lane in plan.lanes} | {plan.average_every_rounds})
    for first, end in pairwise(ends):
        yield end - first, _without(plan, plan.resting_in(first))


def in_full(plan: Plan) -> Plan:
    """Return the plan of a round in which every subnet runs in full, to be scored."""
    return replace(plan, gates=(), refresh_gates_every_rounds=0)


def _without(plan: Plan, resting: tuple[str, ...]) -> Plan:
    left = {
        order.device: tuple(each for each in order.actions if parse_action(each).lane not in resting)
        for order in plan.order
    }
    return replace(
        plan,
        lanes=tuple(lane for lane in plan.lanes if lane.name not in resting),
        order=tuple(DeviceOrder(device=device, actions=actions) for device, actions in left.items() if actions),
    )
