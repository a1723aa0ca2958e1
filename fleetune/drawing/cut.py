"""The model as it is cut: what every lane's segments are, who runs them, and what of them is trained."""

from collections.abc import Sequence

from fleetune.clock import Clock
from fleetune.clock.costs import remaining_shares
from fleetune.contracts.fleet import Fleet
from fleetune.contracts.plan import Lane, Plan, Segment
from fleetune.contracts.profile import Profile
from fleetune.drawing.colours import colour_of_segment
from fleetune.drawing.plan_text import trained_text
from fleetune.drawing.quantities import seconds
from fleetune.drawing.svg import WIDTH, bar, canvas, label

CAPTIONED_LANES = 8
"""More are drawn low, with who runs what in tooltips only."""
_LETTER = 6.4
_TALL, _LOW = 34, 16


def model_chart(plan: Plan, fleet: Fleet, profile: Profile) -> str:
    """Units side by side, as wide as their time in the plan, light where they are not trained, with the devices below;
    a row for every lane, all on one scale."""
    times = [_lane_seconds(Clock(fleet, profile), plan, lane) for lane in plan.lanes]
    many = len(plan.lanes) > 1
    captions = len(plan.lanes) <= CAPTIONED_LANES
    left = 16 + _LETTER * max(len(lane.name) for lane in plan.lanes) if many else 0.0
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
        f"{name}: {seconds(value)} forward and backward of one micro-batch{frozen}\n"
        f"{lane.name}/{index} on {', '.join(segment.devices)}"
    )


def _caption(index: int, segment: Segment, ends: tuple[float, float], y: float) -> list[str]:
    """Who runs the segment; on two lines in turn so that narrow neighbours do not meet."""
    text = f"{index}: " + ", ".join(f"{share.device} ({share.samples})" for share in segment.shares)
    text += f", trains {trained_text(segment)}" if segment.trains else ""
    wide = _LETTER * len(text)
    x = min(max(sum(ends) / 2, wide / 2), WIDTH - wide / 2)
    return [label(x, y + 50 + 16 * (index % 2), text, text_anchor="middle")]


def _caption_height(lane: Lane) -> int:
    return 24 + 16 * (len(lane.segments) > 1)


def _lane_seconds(clock: Clock, plan: Plan, lane: Lane) -> list[list[float]]:
    """[segment][unit] Forward and backward on the group's slowest member: backwards down to the first trained unit,
    and what gates leave in the mean over micro-batches."""
    left = remaining_shares(plan.gates, clock.profile)
    found = []
    for segment in lane.segments:
        first = segment.units.index(segment.trained[0])
        parts = [_mean(left.get(name, ((1.0, 1.0),))) for name in segment.units]
        members = []
        for share in segment.shares:
            forward, backward = clock.unit_times(share.device, share.samples)
            places = [clock.profile.position(name) for name in segment.units]
            members.append(
                [
                    forward[place] * parts[k][0] + backward[place] * parts[k][1] * (k >= first)
                    for k, place in enumerate(places)
                ]
            )
        found.append(max(members, key=sum))
    return found


def _mean(parts: Sequence[tuple[float, float]]) -> tuple[float, float]:
    return sum(f for f, _ in parts) / len(parts), sum(b for _, b in parts) / len(parts)
