"""Charts of the report: the fleet, the loss, and bars that compare forecast and measured bytes."""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

from fleetune.contracts.fleet import Fleet
from fleetune.contracts.metrics import RoundMetrics
from fleetune.contracts.plan import Plan
from fleetune.drawing.axis_labels import axis_ticks
from fleetune.drawing.svg import SEVERAL, WIDTH, bar, canvas, colours_of_devices, element, label, line, tooltip
from fleetune.formatting import number, rate, seconds, size

LABELLED_LINKS_UP_TO = 5
RING_WIDTH = 560.0


def fleet_chart(fleet: Fleet, plan: Plan) -> str:
    """Draw devices on a ring in the colours of their segments; the collector has a rim.

    A line per pair shows the speed of its slower direction.
    """
    count, colours = len(fleet.devices), colours_of_devices(plan)
    wide, tall = (215.0, 90.0) if count > 1 else (0.0, 0.0)
    places = {}
    for k, device in enumerate(fleet.devices):
        turn = 2 * math.pi * k / count - (math.pi / 2 if count != 2 else math.pi)
        places[device.name] = (RING_WIDTH / 2 + wide * math.cos(turn), 28 + tall + tall * math.sin(turn))
    parts, labels = [], []
    for k, a in enumerate(fleet.devices):
        for b in fleet.devices[k + 1 :]:
            ends = (places[a.name], places[b.name])
            parts.append(line(*ends[0], *ends[1], class_="edge"))
            if count <= LABELLED_LINKS_UP_TO:
                labels.append(_link_label(fleet, (a.name, b.name), ends))
    for device in fleet.devices:
        x, y = places[device.name]
        collects = device.name == plan.collector
        hint = f"{device.name}: {number(device.cores)} cores, {size(device.memory_bytes)}, {device.accelerator}"
        hint += ", collects what the others train" if collects else ""
        style = f"fill:{colours.get(device.name, SEVERAL)}" + (";stroke:var(--ink);stroke-width:3" if collects else "")
        parts.append(element("circle", tooltip(hint), cx=x, cy=y, r=15, style=style))
        labels.append(label(x, y + 31, device.name, class_="halo", text_anchor="middle", font_weight="600"))
    height = max(y for _, y in places.values()) + 40
    return canvas(parts + labels, height, "the fleet", RING_WIDTH)


def _link_label(fleet: Fleet, names: tuple[str, str], ends: tuple[tuple[float, float], tuple[float, float]]) -> str:
    there, back = fleet.link(*names), fleet.link(*names[::-1])
    (x1, y1), (x2, y2) = ends
    slower_bytes_per_s = min(there.bytes_per_s, back.bytes_per_s)
    text = f"{rate(slower_bytes_per_s)}, {seconds(max(there.latency_s, back.latency_s))}"
    return label((x1 + x2) / 2, (y1 + y2) / 2 + 4, text, class_="muted halo", text_anchor="middle")


def loss_chart(rounds: Sequence[RoundMetrics]) -> str:
    """Draw the loss over rounds; empty without rounds."""
    if not rounds:
        return ""
    left, right, top, bottom = 46.0, WIDTH - 14.0, 14.0, 200.0
    highest = max(r.loss for r in rounds) * 1.05 or 1.0
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
    left = 20 + 6.8 * max(len(one.name) for one in lines)
    scale = (WIDTH - left - 190) / max([highest, *limits])
    parts = []
    for place, one in enumerate(lines):
        y = 8 + 40.0 * place
        parts.append(label(4, y + 20, one.name))
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
