"""Charts of the model: how lanes cut it into segments, and which heads gates leave out."""

from collections.abc import Sequence
from itertools import groupby

from fleetune.clock import Clock
from fleetune.clock.costs import remaining_shares
from fleetune.contracts.fleet import Fleet
from fleetune.contracts.plan import FORWARD_ONLY, FULL, SKIP, Gate, Lane, Plan, Segment
from fleetune.contracts.profile import Profile
from fleetune.drawing.svg import WIDTH, bar, canvas, colour_of_segment, element, label, line, tooltip
from fleetune.drawing.text import OPERATIONS, operations_text, trained_text, unit_text
from fleetune.formatting import seconds

CAPTIONED_LANES = 8
"""Plans with more lanes get lower bars, with devices in tooltips only."""
_LABEL_LETTER_WIDTH = 6.4
_TALL, _LOW = 34, 16


def model_chart(plan: Plan, fleet: Fleet, profile: Profile) -> str:
    """Draw a row per lane with its units side by side, as wide as their time in the plan, with the devices below.

    Frozen units are light; all rows share one scale.
    """
    times = [_lane_seconds(Clock(fleet, profile), plan, lane) for lane in plan.lanes]
    many = len(plan.lanes) > 1
    captions = len(plan.lanes) <= CAPTIONED_LANES
    left = 16 + _LABEL_LETTER_WIDTH * max(len(lane.name) for lane in plan.lanes) if many else 0.0
    scale = (WIDTH - left) / (max(sum(map(sum, lane)) for lane in times) or 1.0)
    parts, y = [], 0.0
    for at, lane in enumerate(plan.lanes):
        tall = _TALL if captions else _LOW
        if many:
            parts.append(label(0, y + tall / 2 + 4, lane.name))
        x = left
        for index, (segment, unit_s) in enumerate(zip(lane.segments, times[at], strict=True)):
            begin, fill = x, colour_of_segment(plan, at, index)
            gap = 3.0 if many and index < len(lane.segments) - 1 else 1.0
            for name, value in zip(segment.units, unit_s, strict=True):
                wide = value * scale - (gap if name == segment.units[-1] else 1.0)
                style = f"fill:{fill}" + ("" if name in segment.trained else ";opacity:.4")
                parts.append(bar(x, y, (wide, tall), _hint(lane, index, name, value), class_="bar", style=style))
                x += value * scale
            parts += _caption(index, segment, (begin, x), y) if captions else []
        y += tall + (_caption_height(lane) if captions else 4)
    return canvas(parts, y + 4, "the model cut into segments")


def _hint(lane: Lane, index: int, name: str, value: float) -> str:
    segment = lane.segments[index]
    frozen = "" if name in segment.trained else "; not trained here"
    return (
        f"{unit_text(name)}: {seconds(value)} forward and backward of one micro-batch{frozen}\n"
        f"{lane.name}/{index} on {', '.join(segment.devices)}"
    )


def _caption(index: int, segment: Segment, ends: tuple[float, float], y: float) -> list[str]:
    """Label a segment with its devices, on alternating lines so that narrow neighbours do not overlap."""
    text = f"{index}: " + ", ".join(f"{share.device} ({share.samples})" for share in segment.shares)
    text += f", trains {trained_text(segment)}" if segment.trains else ""
    wide = _LABEL_LETTER_WIDTH * len(text)
    x = min(max(sum(ends) / 2, wide / 2), WIDTH - wide / 2)
    return [label(x, y + 50 + 16 * (index % 2), text, text_anchor="middle")]


def _caption_height(lane: Lane) -> int:
    return 24 + 16 * (len(lane.segments) > 1)


def _lane_seconds(clock: Clock, plan: Plan, lane: Lane) -> list[list[float]]:
    """[segment][unit] forward plus backward seconds on the group's slowest member, for the work that gates leave.

    Backward counts from the first trained unit on; gates count by their mean over micro-batches.
    """
    left = remaining_shares(plan.gates, clock.profile)
    found = []
    for segment in lane.segments:
        first = segment.units.index(segment.trained[0])
        parts = [_mean(left.get(name, ((1.0, 1.0),))) for name in segment.units]
        members = []
        for share in segment.shares:
            places, trained = (list(map(clock.profile.position, names)) for names in (segment.units, segment.trained))
            forward, backward = clock.segment_times(share.device, share.samples, places, trained)
            members.append(
                [forward[k] * parts[k][0] + backward[k] * parts[k][1] * (k >= first) for k in range(len(places))]
            )
        found.append(max(members, key=sum))
    return found


def _mean(parts: Sequence[tuple[float, float]]) -> tuple[float, float]:
    return sum(f for f, _ in parts) / len(parts), sum(b for _, b in parts) / len(parts)


_LETTER_WIDTH, _ROW_HEIGHT, _TOP, _GAP = 6.6, 18, 42, 6
_STYLES = {FULL: "fill:var(--forward)", FORWARD_ONLY: "fill:var(--forward);opacity:.4", SKIP: "fill:var(--line)"}


def gates_chart(plan: Plan) -> str:
    """Draw the gates of each head: a row per block, a cell per micro-batch; empty without gates."""
    if not plan.gates:
        return ""
    blocks: dict[str, list[Gate]] = {}
    for gate in plan.gates:
        blocks.setdefault(gate.subnet.rsplit("#", 1)[0], []).append(gate)
    left = 12 + _LETTER_WIDTH * max(len("head"), *(len(unit_text(block)) for block in blocks))
    most = max(map(len, blocks.values()))
    wide = min((WIDTH - left + _GAP) / most, 14.0 * plan.micro_batches + _GAP)
    parts = _gates_legend()
    for row, (block, gates) in enumerate(blocks.items()):
        y = _TOP + _ROW_HEIGHT * row
        parts.append(label(0, y + 12, unit_text(block)))
        for column, gate in enumerate(gates):
            parts.append(_gate_cells(gate, left + column * wide, y, wide - _GAP))
    parts.append(label(0, _TOP - 8, "head", class_="muted"))
    longest = max(blocks.values(), key=len)
    for column, gate in enumerate(longest):
        number = gate.subnet.rsplit("#", 1)[-1]
        at = left + column * wide + (wide - _GAP) / 2
        parts.append(label(at, _TOP - 8, number, class_="muted", text_anchor="middle"))
    bottom = _TOP + _ROW_HEIGHT * len(blocks)
    for column in range(1, most):
        x = left + column * wide - _GAP / 2
        parts.append(line(x, _TOP - 2, x, bottom, class_="rule"))
    return canvas(parts, bottom + 4, "what gates leave of each head in each micro-batch")


def _gate_cells(gate: Gate, x: float, y: float, wide: float) -> str:
    """Draw one head's cells; runs of equal cells are one rectangle, and the tooltip shows the digits."""
    each, at, cells = wide / len(gate.operations), 0, []
    for operation, run in groupby(gate.operations):
        many = len(list(run))
        place = {
            "x": x + at * each,
            "y": float(y),
            "width": max(many * each - 0.4, 0.2),
            "height": float(_ROW_HEIGHT - 3),
        }
        cells.append(element("rect", style=_STYLES[operation], **place))
        at += many
    return element("g", tooltip(f"{gate.subnet}\n{operations_text(gate.operations)}") + "".join(cells), class_="gate")


def _gates_legend() -> list[str]:
    parts, x = [], float(WIDTH)
    for operation, word in reversed(OPERATIONS.items()):
        x -= _LETTER_WIDTH * len(word) + 8
        parts.append(label(x, 14, word, class_="muted"))
        x -= 16
        parts.append(element("rect", x=x, y=4, width=11, height=11, rx=2, style=_STYLES[operation]))
        x -= 8
    return parts
