"""Traces as timeline rows, and the bytes that links carry."""

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from fleetune.clock.event_simulation import Trace
from fleetune.clock.lowering import LoweredPlan, TaskKey, TransferInfo
from fleetune.clock.pipeline import PipelineTrace
from fleetune.contracts.metrics import LinkBytes, TimelineRow
from fleetune.contracts.plan import BACKWARD, REDUCE, Action, Lane, Plan, parse_action

Span = tuple[int, int]
"""[start, end) in ns."""


class AllReduce(NamedTuple):
    """The all-reduce of a segment's group."""

    lane: int
    segment: int
    start_ns: int
    end_ns: int
    trainable_bytes: int


def backward_ends(lowered: LoweredPlan, trace: Trace) -> dict[tuple[int, int], int]:
    """Return (lane, segment) -> ns at which its last backward ends."""
    ends: dict[tuple[int, int], int] = {}
    for number, (at, index, _, letter, _) in enumerate(lowered.tasks):
        if letter == BACKWARD:
            ends[at, index] = max(ends.get((at, index), 0), trace.tasks[number][1])
    return ends


def chain_rows(lane: Lane, trace: PipelineTrace, trainable_bytes: list[int]) -> tuple[TimelineRow, ...]:
    """Return the timeline of a pipeline's trace by start time; the row of a transfer spans its time on the ports."""

    def name(seat: tuple[int, int]) -> str:
        return lane.segments[seat[0]].devices[seat[1]]

    def action(segment: int, letter: str, micro_batch: int) -> Action:
        return Action(lane=lane.name, segment=segment, letter=letter, micro_batch=micro_batch)

    rows = [
        _row(name((t.stage, t.place)), action(t.stage, t.letter, t.micro_batch), (t.start_ns, t.end_ns))
        for t in trace.tasks
    ]
    for t in trace.transfers:
        link = f"{name(t.sender)}>{name(t.receiver)}"
        rows.append(_row(link, action(t.sender[0], t.letter, t.micro_batch), (t.start_ns, t.end_ns), t.bytes))
    for reduce in trace.reduces:
        group = lane.segments[reduce.stage].devices
        rows += _reduce_rows(lane, AllReduce(0, *reduce, trainable_bytes[reduce.stage]), group)
    return sorted_rows(rows, [device for segment in lane.segments for device in segment.devices])


def graph_rows(plan: Plan, lowered: LoweredPlan, trace: Trace, reduced: list[AllReduce]) -> tuple[TimelineRow, ...]:
    """Return the timeline of a task graph's trace by start time, with a collector's updates on their links."""
    rows = []
    for number, span in trace.tasks.items():
        if number < len(lowered.tasks):
            task = lowered.tasks[number]
            rows.append(_row(task.device, _action(plan, task), span))
    for number, span in trace.transfers.items():
        t = lowered.transfers[number]
        rows.append(_row(f"{t.source}>{t.target}", _action(plan, t), span, t.bytes))
    for one in reduced:
        lane = plan.lanes[one.lane]
        rows += _reduce_rows(lane, one, lane.segments[one.segment].devices)
    return sorted_rows(rows, plan.devices)


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


def ring_bytes(trainable_bytes: int, members: int) -> int:
    """Return the bytes that each member of a ring all-reduce sends to the next."""
    return math.ceil(2 * (members - 1) * trainable_bytes / members)


def _reduce_rows(lane: Lane, one: AllReduce, group: tuple[str, ...]) -> list[TimelineRow]:
    size = ring_bytes(one.trainable_bytes, len(group))
    action = Action(lane=lane.name, segment=one.segment, letter=REDUCE, micro_batch=0)
    return [_row(device, action, (one.start_ns, one.end_ns), size) for device in group]


def _action(plan: Plan, of: TaskKey | TransferInfo) -> Action:
    return Action(lane=plan.lanes[of.lane].name, segment=of.segment, letter=of.letter, micro_batch=of.micro_batch)


def _row(device: str, action: Action, span_ns: Span, size: int = 0) -> TimelineRow:
    start_s, end_s = span_ns[0] / 1e9, span_ns[1] / 1e9
    return TimelineRow(device=device, lane=action.lane, action=str(action), start_s=start_s, end_s=end_s, bytes=size)


def sorted_rows(rows: Iterable[TimelineRow], devices: Sequence[str]) -> tuple[TimelineRow, ...]:
    """Sort rows by start and end; ties keep the order of `devices`, then links in order of appearance."""
    place = {device: k for k, device in enumerate(devices)}
    return tuple(sorted(rows, key=lambda r: (r.start_s, r.end_s, place.get(r.device, len(place)))))
