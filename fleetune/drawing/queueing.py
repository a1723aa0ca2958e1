"""Queueing at devices that work for several lanes: from the arrival of a micro-batch to the start of its work."""

from collections.abc import Sequence

from fleetune.contracts.metrics import TimelineRow
from fleetune.contracts.plan import BACKWARD, FORWARD, Action, parse_action
from fleetune.contracts.record import record
from fleetune.errors import Refused
from fleetune.formatting import seconds


@record
class Wait:
    """One micro-batch that has arrived at a device and waits for it."""

    device: str
    lane: str
    action: str
    """The forward or backward that it waits for."""
    arrived_s: float
    """End of its last transfer, in seconds since the start of the round."""
    start_s: float

    @property
    def wait_s(self) -> float:
        """Seconds in the queue."""
        return self.start_s - self.arrived_s


def waits(rows: Sequence[TimelineRow]) -> tuple[Wait, ...]:
    """Return the waits at devices that work for several lanes, by their starts; latency counts as waiting."""
    work = [(row, action) for row in rows if not row.is_transfer and (action := _work(row)) is not None]
    lanes: dict[str, set[str]] = {}
    for row, action in work:
        lanes.setdefault(row.device, set()).add(action.lane)
    arrived: dict[tuple[str, Action], float] = {}
    for row in rows:
        sent = _work(row) if row.is_transfer else None
        if sent is not None:
            key = (row.device.partition(">")[2], sent)
            arrived[key] = max(row.end_s, arrived.get(key, 0.0))
    found = []
    for row, action in work:
        arrived_s = arrived.get((row.device, _sender(action)))
        if arrived_s is not None and len(lanes[row.device]) > 1 and row.start_s > arrived_s:
            found.append(
                Wait(device=row.device, lane=action.lane, action=row.action, arrived_s=arrived_s, start_s=row.start_s)
            )
    return tuple(sorted(found, key=lambda wait: (wait.arrived_s, wait.start_s, wait.action)))


def queueing_text(rows: Sequence[TimelineRow]) -> str:
    """Return a line per device with a queue: `queue at desk: laptop 213 ms, nano 301 ms`; empty without any."""
    totals: dict[str, dict[str, float]] = {}
    for wait in waits(rows):
        lanes = totals.setdefault(wait.device, {})
        lanes[wait.lane] = lanes.get(wait.lane, 0.0) + wait.wait_s
    return "\n".join(
        f"queue at {device}: {', '.join(f'{lane} {seconds(total_s)}' for lane, total_s in sorted(lanes.items()))}"
        for device, lanes in totals.items()
    )


def _work(row: TimelineRow) -> Action | None:
    """Return the forward or backward of a row; None for other rows."""
    try:
        action = parse_action(row.action)
    except Refused:
        return None
    return action if action.letter in (FORWARD, BACKWARD) else None


def _sender(action: Action) -> Action:
    """Return the action whose result this one waits for: of the segment before, or behind in a backward."""
    step = -1 if action.letter == FORWARD else 1
    return Action(lane=action.lane, segment=action.segment + step, letter=action.letter, micro_batch=action.micro_batch)
