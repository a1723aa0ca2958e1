"""Charts of the fleet, the loss, forecast beside measured bytes, and curves of several trainings over time."""

import math
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise, product
from typing import NamedTuple

from fleetune.contracts.fleet import Fleet
from fleetune.contracts.link_codecs import DENSE
from fleetune.contracts.metrics import Forecast, LinkBytes, RoundMetrics, RoundScores, TrainingMetrics
from fleetune.contracts.plan import Plan
from fleetune.contracts.tasks import LOSS
from fleetune.drawing.svg import (
    SEVERAL,
    WIDTH,
    axis_ticks,
    bar,
    canvas,
    colour,
    colours_of_devices,
    element,
    label,
    line,
    shortened,
    tooltip,
)
from fleetune.drawing.text import link_text
from fleetune.formatting import number, rate, seconds, seconds_range, size
from fleetune.program import sample_transfers

LABELLED_LINKS_UP_TO = 5
"""Devices up to which the speed of used links is written beside them."""
LABELLED_USES_UP_TO = 8
"""Pairs of devices with codecs or shares up to which these are written beside them."""
_ROOM = 64.0
"""Least distance of neighbours: a circle with a name of eight letters below it."""
RING_WIDTH = 560.0
OFF_CENTRE = 0.64
"""Place of the label along a link between opposite devices, which all cross in the middle."""


def fleet_chart(fleet: Fleet, plan: Plan, sent: Iterable[LinkBytes] = ()) -> str:
    """Draw devices on a ring in the colours of their segments; the collector has a rim.

    A line per pair, faint if the plan sends nothing over it, dashed if a codec thins what it carries; where there are
    few, a used one says the speed of its slower direction, its codec and its share of the medium. sent: of a round by
    its forecast, which knows of weights that segments share, as a plan alone does not.
    """
    count, colours = len(fleet.devices), colours_of_devices(plan)
    labelled = len({frozenset((use.source, use.target)) for use in plan.links if not use.is_neutral})
    wide, tall = _radii(count, labelled)
    sent, width = tuple(sent), max(RING_WIDTH, 2 * wide + 130)
    places = {}
    for k, device in enumerate(fleet.devices):
        turn = 2 * math.pi * k / count - (math.pi / 2 if count != 2 else math.pi)
        places[device.name] = (width / 2 + wide * math.cos(turn), 28 + tall + tall * math.sin(turn))
    used = used_pairs(plan) | {frozenset((each.source, each.target)) for each in sent if each.bytes}
    taken = [
        box for name, (x, y) in places.items() for box in ((x - 17, y - 17, x + 17, y + 17), _box(name, x, y + 31))
    ]
    parts, labels, coded = [], [], coded_pairs(plan)
    for k, a in enumerate(fleet.devices):
        for j, b in enumerate(fleet.devices[k + 1 :], k + 1):
            ends = (places[a.name], places[b.name])
            pair = frozenset((a.name, b.name))
            said = _uses_of_pair(plan, (a.name, b.name)) if labelled <= LABELLED_USES_UP_TO else []
            class_ = "edge" + ("" if pair in used else " idle") + (" coded" if pair in coded else "")
            ways = ((a.name, b.name), (b.name, a.name))
            hint = tooltip("\n".join(_link_hint(fleet, plan, sent, *way) for way in ways))
            parts.append(
                element("line", hint, x1=ends[0][0], y1=ends[0][1], x2=ends[1][0], y2=ends[1][1], class_=class_)
            )
            texts = [_speed_text(fleet, (a.name, b.name))] if count <= LABELLED_LINKS_UP_TO else []
            at = OFF_CENTRE if count > 2 and 2 * (j - k) == count else 0.5
            labels += _link_label([*texts, *said], ends, at, (width, taken)) if pair in used else []
    for device in fleet.devices:
        x, y = places[device.name]
        collects = device.name == plan.collector
        hint = f"{device.name}: {number(device.cores)} cores, {size(device.memory_bytes)}, {device.computes_on}"
        hint += ", collects what the others train" if collects else ""
        style = f"fill:{colours.get(device.name, SEVERAL)}" + (";stroke:var(--ink);stroke-width:3" if collects else "")
        parts.append(element("circle", tooltip(hint), cx=x, cy=y, r=15, style=style))
        labels.append(label(x, y + 31, device.name, class_="halo", text_anchor="middle", font_weight="600"))
    height = max(y for _, y in places.values()) + 40
    return canvas(parts + labels, height, "the fleet", width)


def _radii(count: int, labelled: int) -> tuple[float, float]:
    """Return the half axes of the ring, on which neighbours have room for their circles and names."""
    if count < 2:
        return 0.0, 0.0
    least = _ROOM / 2 / math.sin(math.pi / count)
    return max(215.0, least), max(90.0 + 30.0 * (0 < labelled <= LABELLED_USES_UP_TO), least)


def used_pairs(plan: Plan) -> frozenset[frozenset[str]]:
    """Return the pairs of devices between which a round of the plan sends something."""
    found = set()
    for lane in plan.lanes:
        for before, after in pairwise(lane.segments):
            found |= {frozenset((each.source, each.target)) for each in sample_transfers(before, after)}
        for segment in lane.segments:
            found |= {frozenset(pair) for pair in pairwise((*segment.devices, segment.devices[0]))}
            found |= {frozenset((device, plan.collector)) for device in segment.devices if plan.collector}
    return frozenset(pair for pair in found if len(pair) == 2)


def coded_pairs(plan: Plan) -> frozenset[frozenset[str]]:
    """Return the pairs of devices whose link has a codec, in one direction at least."""
    coded = (use for use in plan.links if use.codec != DENSE and not use.is_neutral)
    return frozenset(frozenset((use.source, use.target)) for use in coded)


def _uses_of_pair(plan: Plan, names: tuple[str, str]) -> list[str]:
    """Return the codecs and shares of a pair in one line, or in a line per direction where they differ."""
    ways = (names, names[::-1])
    uses = {(use.source, use.target): link_text(use) for use in plan.links if not use.is_neutral}
    found = [(target, uses[source, target]) for source, target in ways if (source, target) in uses]
    if len(found) == len(ways) and found[0][1] == found[1][1]:
        return [found[0][1]]
    return [f"to {target}: {text}" for target, text in found]


def _link_hint(fleet: Fleet, plan: Plan, sent: Iterable[LinkBytes], source: str, target: str) -> str:
    link = fleet.link(source, target)
    said = [link_text(use) for use in plan.links if (use.source, use.target) == (source, target)]
    said += [f"{size(each.bytes)} a round" for each in sent if (each.source, each.target) == (source, target)]
    return ", ".join([f"{source} > {target}: {rate(link.bytes_per_s)}", seconds(link.latency_s), *said])


def _speed_text(fleet: Fleet, names: tuple[str, str]) -> str:
    there, back = fleet.link(*names), fleet.link(*names[::-1])
    slower_bytes_per_s = min(there.bytes_per_s, back.bytes_per_s)
    return f"{rate(slower_bytes_per_s)}, {seconds(max(there.latency_s, back.latency_s))}"


Box = tuple[float, float, float, float]
"""Left, top, right and bottom."""


def _link_label(
    texts: Sequence[str],
    ends: tuple[tuple[float, float], tuple[float, float]],
    at: float,
    paper: tuple[float, list[Box]],
) -> list[str]:
    """Write lines of text beside a link, about a part `at` of its way: where nothing else is, if there is such a place.

    paper: its width, and what is taken of it.
    """
    if not texts:
        return []
    width, taken = paper
    (x1, y1), (x2, y2) = ends
    found: list[tuple[int, int, list[Box]]] = []
    along, beside, above = (
        (0.0, -0.1, 0.1, -0.2, 0.2, -0.3, 0.3),
        (0.0, 50.0, -50.0, 100.0, -100.0),
        (0.0, 25.0, -25.0, 50.0),
    )
    for lift, aside, moved in product(above, beside, along):
        x = x1 + (x2 - x1) * (at + moved) + aside
        y = y1 + (y2 - y1) * (at + moved) + 4 - 7.5 * (len(texts) - 1) + lift
        boxes = [_box(text, x, y + 15 * place) for place, text in enumerate(texts)]
        if all(box[0] > 0 and box[2] < width for box in boxes) or not found:
            found.append((sum(_overlap(one, other) for one in boxes for other in taken), len(found), boxes))
    boxes = min(found)[-1]
    taken += boxes
    return [
        label((left + right) / 2, bottom - 3, text, class_="muted halo", text_anchor="middle")
        for text, (left, _, right, bottom) in zip(texts, boxes, strict=True)
    ]


def _box(text: str, x: float, y: float) -> Box:
    """Return what a text covers that is centred at x on the line y."""
    wide = 3.3 * len(text)
    return (x - wide, y - 11, x + wide, y + 3)


def _overlap(one: Box, other: Box) -> bool:
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]


def loss_chart(rounds: Sequence[RoundMetrics], scores: Sequence[RoundScores] = ()) -> str:
    """Draw the loss over rounds, and as dots that of held-out samples, where it was scored; empty without rounds."""
    if not rounds:
        return ""
    left, right, top, bottom = 46.0, WIDTH - 14.0, 14.0, 200.0
    held_out = [(each.rounds, each.values[LOSS]) for each in scores]
    highest = max([r.loss for r in rounds] + [loss for _, loss in held_out]) * 1.05 or 1.0
    first, last = rounds[0].round, rounds[-1].round

    def at(round_: int, loss: float) -> tuple[float, float]:
        x = left + (right - left) * (round_ - first) / max(last - first, 1)
        return x, bottom - (bottom - top) * loss / highest

    parts = []
    for tick in axis_ticks(highest, 5):
        y = at(first, tick)[1]
        parts += [line(left, y, right, y, class_="rule")]
        parts += [label(left - 6, y + 4, number(round(tick, 6)), class_="muted", text_anchor="end")]
    for tick in axis_ticks(last - first, 8):
        if tick == int(tick):
            x = at(first + int(tick), 0)[0]
            parts.append(label(x, bottom + 16, str(first + int(tick)), class_="muted", text_anchor="middle"))
    path = "L".join(f"{x:.1f} {y:.1f}" for x, y in (at(r.round, r.loss) for r in rounds))
    parts.append(element("path", d=f"M{left:.1f} {bottom:.1f}L{path}L{right:.1f} {bottom:.1f}Z", class_="area"))
    parts.append(element("path", d=f"M{path}", class_="curve"))
    parts.append(label(right, bottom + 34, "round", class_="muted", text_anchor="end"))
    for r in rounds if len(rounds) <= 300 else ():
        x, y = at(r.round, r.loss)
        hint = tooltip(f"round {r.round}: loss {number(r.loss)}")
        parts.append(element("circle", hint, cx=x, cy=y, r=4, style="fill:transparent"))
    for after, loss in held_out:
        x, y = at(min(after - 1, last), loss)
        hint = tooltip(f"held-out samples after round {after}: loss {number(loss)}")
        parts.append(element("circle", hint, cx=x, cy=y, r=3.5, class_="held-out"))
    return canvas(parts, bottom + 40, "loss by round")


class Amounts(NamedTuple):
    """A forecast and a measured amount, such as the bytes of one device or link."""

    name: str
    forecast: float
    measured: float | None
    """None if nothing was measured."""
    limit: float | None = None


def amounts_chart(lines: Sequence[Amounts], name: str, words: Callable[[float], str] = size) -> str:
    """Draw a pair of bars per entry, forecast above measured, with a dashed mark at the limit if it fits the scale.

    `words` formats an amount; by default it is one of bytes.
    """
    if not lines:
        return ""
    highest = max(max(one.forecast, one.measured or 0.0) for one in lines) or 1.0
    limits = [one.limit for one in lines if one.limit is not None and one.limit <= 2.5 * highest]
    left = 20 + 6.8 * max(len(shortened(one.name)) for one in lines)
    scale = (WIDTH - left - 190) / max([highest, *limits])
    parts = []
    for place, one in enumerate(lines):
        y = 8 + 40.0 * place
        parts.append(label(4, y + 20, shortened(one.name)))
        for k, (kind, value, style) in enumerate(
            (("forecast", one.forecast, "opacity:.45"), ("measured", one.measured, ""))
        ):
            if value is None:
                continue
            hint = f"{one.name}, {kind}: {words(value)}"
            parts.append(bar(left, y + 2 + 15 * k, (value * scale, 12), hint, class_="bar F", style=style))
            text = f"{words(value)} {kind}"
            parts.append(label(left + value * scale + 6, y + 12 + 15 * k, text, class_="muted", font_size="11"))
        if one.limit is not None and one.limit <= 2.5 * highest:
            x = left + one.limit * scale
            hint = tooltip(f"budget {words(one.limit)}")
            parts.append(element("line", hint, x1=x, y1=y - 2, x2=x, y2=y + 33, class_="limit"))
    return canvas(parts, 12 + 40 * len(lines), name)


def round_chart(forecast: Forecast, training: TrainingMetrics | None) -> str:
    """Draw the forecast of a round within its interval, above the measured rounds and their median.

    Empty for a forecast without an interval.
    """
    if forecast.interval is None:
        return ""
    low_s, high_s = forecast.interval.low_s, forecast.interval.high_s
    rounds_s = [each.round_s for each in (training.rounds_as_planned if training else ()) if each.is_whole]
    left = 80.0
    scale = (WIDTH - left - 20) / (1.05 * max(high_s, *rounds_s, 1e-9))

    def mark(seconds_: float, y: float, hint: str) -> str:
        x = left + seconds_ * scale
        return element("line", tooltip(hint), x1=x, y1=y, x2=x, y2=y + 20, style="stroke:var(--ink);stroke-width:2.5")

    hint = f"interval of the forecast: {seconds_range(low_s, high_s)}"
    parts = [label(4, 24, "forecast")]
    parts.append(
        bar(left + low_s * scale, 12, ((high_s - low_s) * scale, 16), hint, class_="bar F", style="opacity:.45")
    )
    parts.append(mark(forecast.round_s, 10, f"forecast: {seconds(forecast.round_s)}"))
    if training is not None and rounds_s:
        parts.append(label(4, 56, "measured"))
        for round_s in sorted(rounds_s)[:: math.ceil(len(rounds_s) / 300)]:
            parts.append(element("circle", cx=left + round_s * scale, cy=52, r=3, class_="F", style="opacity:.35"))
        parts.append(mark(training.median_round_s, 42, f"median of the rounds: {seconds(training.median_round_s)}"))
    axis = 72 if rounds_s else 40
    for tick in axis_ticks(1.05 * max(high_s, *rounds_s, 1e-9)):
        parts.append(line(left + tick * scale, 6, left + tick * scale, axis, class_="rule"))
        parts.append(label(left + tick * scale, axis + 16, seconds(tick), class_="muted", text_anchor="middle"))
    return canvas(parts, axis + 22.0, "a round: forecast with its interval, and measured rounds")


LEFT, RIGHT, TOP, BOTTOM = 52.0, WIDTH - 14.0, 34.0, 240.0
LEGEND_WIDTH, MOST_IN_A_ROW = 150.0, 6


class Curve(NamedTuple):
    """One curve: its name, and pairs of a moment in seconds and a value."""

    name: str
    points: Sequence[tuple[float, float]]


def curves_chart(curves: Sequence[Curve], name: str, target: float | None = None) -> str:
    """Draw values over seconds, with a dashed line at the target; empty without points. `name` is its title.

    The value axis covers the values, not zero: curves that differ little can be told apart.
    """
    curves = [curve for curve in curves if curve.points]
    if not curves:
        return ""
    values = [value for curve in curves for _, value in curve.points] + ([] if target is None else [target])
    lowest, highest = min(values), max(values)
    margin = 0.05 * (highest - lowest) or 0.05 * abs(highest) or 1.0
    lowest, highest = lowest - margin, highest + margin
    until_s = max(moment for curve in curves for moment, _ in curve.points) or 1.0
    rows = -(-len(curves) // MOST_IN_A_ROW)
    top = TOP + 18 * (rows - 1)

    def at(moment: float, value: float) -> tuple[float, float]:
        x = LEFT + (RIGHT - LEFT) * moment / until_s
        return x, BOTTOM - (BOTTOM - top) * (value - lowest) / (highest - lowest)

    parts = _axes(at, (lowest, highest), until_s)
    if target is not None:
        y = at(0.0, target)[1]
        hint = tooltip(f"target {number(target)}")
        parts.append(element("line", hint, x1=LEFT, y1=y, x2=RIGHT, y2=y, class_="limit"))
    for place, curve in enumerate(curves):
        path = "L".join(f"{x:.1f} {y:.1f}" for x, y in (at(*point) for point in curve.points))
        hint = tooltip(f"{curve.name}: {number(curve.points[-1][1])} after {seconds(curve.points[-1][0])}")
        parts.append(element("path", hint, d=f"M{path}", class_="curve", style=f"stroke:{colour(place)}"))
        x = LEFT + LEGEND_WIDTH * (place % MOST_IN_A_ROW)
        y = 10 + 18.0 * (place // MOST_IN_A_ROW)
        parts.append(line(x, y, x + 18, y, style=f"stroke:{colour(place)};stroke-width:3"))
        parts.append(label(x + 24, y + 4, curve.name))
    return canvas(parts, BOTTOM + 24, name)


def _axes(at: Callable[[float, float], tuple[float, float]], values: tuple[float, float], until_s: float) -> list[str]:
    """Draw rules and labels: about five values between the lowest and the highest, and seconds below."""
    lowest, highest = values
    parts = []
    for step in axis_ticks(highest - lowest, 5):
        x, y = at(0.0, lowest + step)
        parts.append(line(x, y, RIGHT, y, class_="rule"))
        parts.append(label(x - 6, y + 4, number(lowest + step), class_="muted", text_anchor="end"))
    for moment in axis_ticks(until_s, 8):
        parts.append(label(at(moment, lowest)[0], BOTTOM + 16, seconds(moment), class_="muted", text_anchor="middle"))
    return parts
