"""Explicit orders: whole, possible, and drawn where they are not."""

from collections import Counter
from collections.abc import Iterator, Mapping

from fleetune.checks.structure import some
from fleetune.clock import Clock
from fleetune.contracts.fleet import Fleet
from fleetune.contracts.plan import BACKWARD, FORWARD, REDUCE, Action, Plan, actions_of, parse_action
from fleetune.contracts.profile import Profile

MARK = "<-- waits"


def misordered(plan: Plan) -> Iterator[str]:
    """Orders of devices that do not take part or are listed twice; actions missing, repeated or not the device's."""
    listed = Counter(order.device for order in plan.order)
    for device, times in listed.items():
        if times > 1:
            yield f"device {device} has {times} orders; give it one"
    for order in plan.order:
        mine = _segments_of(plan, order.device)
        if not mine:
            yield f"device {order.device} has an order but no segment"
            continue
        yield from _faults(plan, order.device, [parse_action(spelling) for spelling in order.actions], mine)


def stuck(plan: Plan, fleet: Fleet, profile: Profile) -> Iterator[str]:
    """An order (or warm-ups) by which devices wait for each other for ever, drawn with the blocking actions marked."""
    waiting = Clock(fleet, profile).stuck(plan)
    if waiting:
        yield f"its order deadlocks, {', '.join(waiting)} wait for ever{_hint(plan, waiting)}:\n{grid(plan, waiting)}"


def grid(plan: Plan, waiting: Mapping[str, int]) -> str:
    """A line per device with its actions; the one at the given position is marked."""
    width = max(len(device) for device in plan.devices)
    lines = []
    for device in plan.devices:
        spelled = [str(action) for action in actions_of(plan, device) if action.letter != REDUCE]
        if device in waiting:
            spelled.insert(waiting[device] + 1, MARK)
        lines.append(f"  {device:<{width}}  {' '.join(spelled)}")
    return "\n".join(lines)


def _hint(plan: Plan, waiting: Mapping[str, int]) -> str:
    """Who came back without an order: segment after segment, it would end its first one before it begins the next."""
    ordered = {order.device for order in plan.order}
    lost = [d for d in waiting if d not in ordered and _comes_back(plan, d)]
    return f" ({some(lost)}: several segments of a lane need an explicit order)" if lost else ""


def _comes_back(plan: Plan, device: str) -> bool:
    lanes = [lane for lane, _ in _segments_of(plan, device)]
    return len(set(lanes)) < len(lanes)


def _segments_of(plan: Plan, device: str) -> list[tuple[str, int]]:
    return [
        (lane.name, index)
        for lane in plan.lanes
        for index, segment in enumerate(lane.segments)
        if device in segment.devices
    ]


def _faults(plan: Plan, device: str, actions: list[Action], mine: list[tuple[str, int]]) -> Iterator[str]:
    """What is wrong with one device's order; the first fault of each kind."""
    given = Counter(str(action) for action in actions)
    wanted = [
        str(Action(lane=lane, segment=index, letter=letter, micro_batch=m))
        for lane, index in mine
        for letter in (FORWARD, BACKWARD)
        for m in range(plan.micro_batches)
    ]
    reduces = {str(Action(lane=lane, segment=index, letter=REDUCE, micro_batch=0)) for lane, index in mine}
    missing = [spelling for spelling in wanted if spelling not in given]
    foreign = [spelling for spelling in given if spelling not in {*wanted, *reduces}]
    repeated = [spelling for spelling, times in given.items() if times > 1]
    if missing:
        yield f"the order of {device} misses {some(missing)}"
    if foreign:
        places = ", ".join(f"{lane}/{index}" for lane, index in mine)
        yield (
            f"the order of {device} has {foreign[0]}, which is not of its segment{'s' * (len(mine) > 1)} {places} in "
            "this round"
        )
    if repeated:
        yield f"the order of {device} has {repeated[0]} {given[repeated[0]]} times; every action is done once"
    if not (missing or foreign or repeated):
        yield from _too_early(device, actions)


def _too_early(device: str, actions: list[Action]) -> Iterator[str]:
    """A backward before its own forward, or an all-reduce before its segment's last backward."""
    place = {(a.lane, a.segment, a.letter, a.micro_batch): index for index, a in enumerate(actions)}
    for action in actions:
        seat = (action.lane, action.segment)
        own = place[*seat, action.letter, action.micro_batch]
        if action.letter == BACKWARD and own < place[*seat, FORWARD, action.micro_batch]:
            yield f"the order of {device} has {action} before its forward"
            return
        if action.letter == REDUCE and own < max(at for key, at in place.items() if key[:3] == (*seat, BACKWARD)):
            yield f"the order of {device} has {action} before its last backward"
            return
