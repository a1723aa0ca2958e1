"""Picture of a training that lost devices: rounds over time, the losses, and the time until the next commit."""

from itertools import pairwise

from fleetune.contracts.course import Course, Recovered
from fleetune.drawing.svg import WIDTH, axis_ticks, bar, canvas, element, label, line, tooltip
from fleetune.formatting import number, seconds, size

LEFT, RIGHT, TOP, BOTTOM = 46.0, WIDTH - 14.0, 44.0, 220.0
LABELS = 3
"""Rows above the curve that names take turns in, so that losses that follow each other stay legible."""
ROW = 14.0


def course_chart(course: Course | None) -> str:
    """Draw the course of a training; empty for one that lost nothing."""
    if course is None:
        return ""
    ends_s = [point.at_s for point in course.progress] + [loss.at_s for loss in course.losses]
    whole_s = max(ends_s, default=0.0) or 1.0
    most = max((point.rounds for point in course.progress), default=0) or 1

    def x(at_s: float) -> float:
        return LEFT + (RIGHT - LEFT) * at_s / whole_s

    def y(rounds: float) -> float:
        return BOTTOM - (BOTTOM - TOP) * rounds / most

    parts = []
    for tick in axis_ticks(most, 5):
        if tick == int(tick):
            parts += [line(LEFT, y(tick), RIGHT, y(tick), class_="rule")]
            parts += [label(LEFT - 6, y(tick) + 4, number(tick), class_="muted", text_anchor="end")]
    for tick in axis_ticks(whole_s, 8):
        parts.append(label(x(tick), BOTTOM + 16, number(round(tick, 6)), class_="muted", text_anchor="middle"))
    parts.append(label(RIGHT, BOTTOM + 34, "seconds", class_="muted", text_anchor="end"))
    for each in course.recoveries:
        width = x(each.until_s) - x(each.from_s)
        parts.append(bar(x(each.from_s), TOP, (width, BOTTOM - TOP), _text(course, each), class_="area"))
    most_done = 0
    for before, after in pairwise(course.progress):
        again = before.rounds < after.rounds <= most_done
        most_done = max(most_done, after.rounds, before.rounds)
        step = f"M{x(before.at_s):.1f} {y(before.rounds):.1f}H{x(after.at_s):.1f}V{y(after.rounds):.1f}"
        parts.append(element("path", d=step, class_="curve", style="stroke:var(--backward)" if again else ""))
    for place, loss in enumerate(course.losses):
        at, top = x(loss.at_s), TOP - 4 - ROW * (place % LABELS)
        parts.append(line(at, top, at, BOTTOM, class_="limit"))
        anchor = "end" if at > (LEFT + RIGHT) / 2 else "start"
        beside = at + (-5 if anchor == "end" else 5)
        hint = tooltip(f"after {seconds(loss.at_s)}: {loss.reason}")
        said = f"{loss.device} lost" if loss.device else "broken off"
        said += next((_cost(each) for each in course.recoveries if each.from_s <= loss.at_s <= each.until_s), "")
        parts.append(element("g", label(beside, top + 9, said, text_anchor=anchor) + hint))
    return canvas(parts, BOTTOM + 40, "rounds over time, and losses of devices")


def course_texts(course: Course | None) -> list[str]:
    """Return a sentence for each recovery, which names the devices that were lost or came back."""
    return [_text(course, each) for each in course.recoveries] if course else []


def _text(course: Course, found: Recovered) -> str:
    lost = dict.fromkeys(loss.device for loss in course.losses if found.from_s <= loss.at_s <= found.until_s)
    named = [f"{', '.join(filter(None, lost))} lost"] if any(lost) else []
    named += [f"{', '.join(found.back)} back"] if found.back else []
    return f"after {seconds(found.from_s)}: {' and '.join(named)}{', ' if named else ''}{_told(found)}"


def _cost(found: Recovered) -> str:
    return f": {size(found.moved_bytes)} moved, next commit {seconds(found.until_s - found.from_s)} later"


def _told(found: Recovered) -> str:
    if not found.broken:
        again = f"no round run again, on from round {found.from_round}"
    elif found.again:
        rounds = f"{found.again} round{'' if found.again == 1 else 's'}"
        again = f"{rounds} and the broken one run again from round {found.from_round} on"
    else:
        again = "the broken round run again"
    return f"{seconds(found.until_s - found.from_s)} until the next commit, {size(found.moved_bytes)} moved, {again}"
