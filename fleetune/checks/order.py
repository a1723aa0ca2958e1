"""Checks of explicit orders: completeness, and deadlocks, which are drawn."""

from collections import Counter
from collections.abc import Iterator, Mapping

from fleetune.checks.structure import first_names
from fleetune.clock.costs import PlacedSegment, segments_on
from fleetune.contracts.plan import BACKWARD, FORWARD, REDUCE, Action, Plan, actions_of, parse_action
from fleetune.contracts.profile import Profile
from fleetune.program import program_of
from fleetune.program.execution import carry_out

MARK = "<-- waits"


def order_faults(plan: Plan) -> Iterator[str]:
    """Yield orders of unused devices, repeated orders, and missing, repeated or foreign actions."""
    listed = Counter(order.device for order in plan.order)
    for device, times in listed.items():
        if times > 1:
            yield f"device {device} has {times} orders; give it one"
    for order in plan.order:
        own = segments_on(plan, order.device)
        if not own:
            yield f"device {order.device} has an order but no segment"
            continue
        yield from _faults(plan, order.device, [parse_action(spelling) for spelling in order.actions], own)


def program_faults(plan: Plan, profile: Profile) -> Iterator[str]:
    """Yield what keeps the steps of all devices from ending: a wait for ever, or a message that nobody receives.

    A deadlock caused by orders or warm-ups is drawn with the blocked actions marked.
    """
    outcome = carry_out(program_of(plan, profile))
    if waiting := outcome.deadlocked:
        drawing = draw_orders(plan, waiting)
        yield f"its order deadlocks, {', '.join(waiting)} wait for ever{_hint(plan, waiting)}:\n{drawing}"
    elif outcome.waiting:
        yield f"its steps never end: {first_names([str(each) for each in outcome.waiting])} wait for ever"
    if outcome.unreceived:
        yield f"its steps send what nobody receives: {first_names([str(each) for each in outcome.unreceived])}"


def draw_orders(plan: Plan, waiting: Mapping[str, int]) -> str:
    """Draw one line per device with its actions; `waiting` maps devices to the position to mark."""
    width = max(len(device) for device in plan.devices)
    lines = []
    for device in plan.devices:
        spelled = [str(action) for action in actions_of(plan, device) if action.letter != REDUCE]
        if device in waiting:
            spelled.insert(waiting[device] + 1, MARK)
        lines.append(f"  {device:<{width}}  {' '.join(spelled)}")
    return "\n".join(lines)


def _hint(plan: Plan, waiting: Mapping[str, int]) -> str:
    """Name devices with several segments of a lane and no order, for which 1F1B runs one segment after the other."""
    ordered = {order.device for order in plan.order}
    lost = [d for d in waiting if d not in ordered and _recurs_in_lane(plan, d)]
    return f" ({first_names(lost)}: several segments of a lane need an explicit order)" if lost else ""


def _recurs_in_lane(plan: Plan, device: str) -> bool:
    lanes = [placed.lane for placed in segments_on(plan, device)]
    return len(set(lanes)) < len(lanes)


def _faults(plan: Plan, device: str, actions: list[Action], own: list[PlacedSegment]) -> Iterator[str]:
    """Yield the first fault of each kind in one device's order."""
    given = Counter(str(action) for action in actions)
    wanted = [
        str(Action(lane=placed.lane, segment=placed.index, letter=letter, micro_batch=m))
        for placed in own
        for letter in (FORWARD, BACKWARD)
        for m in range(placed.micro_batches or plan.micro_batches)
    ]
    reduces = {str(Action(lane=one.lane, segment=one.index, letter=REDUCE, micro_batch=0)) for one in own}
    missing = [spelling for spelling in wanted if spelling not in given]
    foreign = [spelling for spelling in given if spelling not in {*wanted, *reduces}]
    repeated = [spelling for spelling, times in given.items() if times > 1]
    if missing:
        yield f"the order of {device} misses {first_names(missing)}"
    if foreign:
        places = ", ".join(map(str, own))
        yield (
            f"the order of {device} has {foreign[0]}, which is not of its segment{'s' * (len(own) > 1)} {places} in "
            "this round"
        )
    if repeated:
        yield f"the order of {device} has {repeated[0]} {given[repeated[0]]} times; every action is done once"
    if not (missing or foreign or repeated):
        yield from _too_early(device, actions)


def _too_early(device: str, actions: list[Action]) -> Iterator[str]:
    """Yield a forward or backward before what it follows, or an all-reduce before its segment's last backward.

    Forwards of a segment go in the order of micro-batches, as on one machine: running statistics of batch norms move in
    that order.
    """
    positions = {(a.lane, a.segment, a.letter, a.micro_batch): index for index, a in enumerate(actions)}
    for position, action in enumerate(actions):
        segment = (action.lane, action.segment)
        if action.letter == BACKWARD and position < positions[*segment, FORWARD, action.micro_batch]:
            yield f"the order of {device} has {action} before its forward"
            return
        if action.letter == FORWARD and position < positions.get((*segment, FORWARD, action.micro_batch - 1), -1):
            yield (
                f"the order of {device} has {action} before that of micro-batch {action.micro_batch - 1}; forwards of "
                "a segment go in the order of micro-batches"
            )
            return
        backwards = [at for key, at in positions.items() if key[:3] == (*segment, BACKWARD)]
        if action.letter == REDUCE and position < max(backwards):
            yield f"the order of {device} has {action} before its last backward"
            return
