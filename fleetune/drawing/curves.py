"""Curves of several trainings over time, in one chart with a legend."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from fleetune.drawing.axis_labels import axis_ticks
from fleetune.drawing.svg import WIDTH, canvas, colour, element, label, line, tooltip
from fleetune.formatting import number, seconds

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
