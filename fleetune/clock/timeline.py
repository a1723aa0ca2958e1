"""Rows of a timeline, and the bytes that links carry."""

from collections.abc import Iterable, Sequence

from fleetune.contracts.metrics import LinkBytes, TimelineRow
from fleetune.contracts.plan import REDUCE, Action, Plan, parse_action


def link_bytes(plan: Plan, rows: Iterable[TimelineRow]) -> tuple[LinkBytes, ...]:
    """Return bytes per directed link: cuts, updates, sums of shared weights, and each group's ring all-reduce in the
    order of its shares."""
    lanes = {lane.name: lane for lane in plan.lanes}
    amounts: dict[tuple[str, str], int] = {}
    for row in rows:
        action = parse_action(row.action)
        if row.is_transfer:
            source, target = row.device.split(">")
        elif action.letter == REDUCE:
            group = lanes[action.lane].segments[action.segment].devices
            source, target = row.device, group[(group.index(row.device) + 1) % len(group)]
        else:
            continue
        amounts[source, target] = amounts.get((source, target), 0) + row.bytes
    return tuple(LinkBytes(source=a, target=b, bytes=size) for (a, b), size in sorted(amounts.items()))


def row_of(device: str, action: Action, span_ns: tuple[int, int], size: int = 0) -> TimelineRow:
    """Return the row of what a device, or a link, does in [start, end) ns."""
    start_s, end_s = span_ns[0] / 1e9, span_ns[1] / 1e9
    return TimelineRow(device=device, lane=action.lane, action=str(action), start_s=start_s, end_s=end_s, bytes=size)


def sorted_rows(rows: Iterable[TimelineRow], devices: Sequence[str]) -> tuple[TimelineRow, ...]:
    """Sort rows by start and end; ties keep the order of `devices`, then links in order of appearance."""
    place = {device: k for k, device in enumerate(devices)}
    return tuple(sorted(rows, key=lambda r: (r.start_s, r.end_s, place.get(r.device, len(place)))))
