"""Curves over seconds: all of them, inside the chart, with their names."""

import re
from xml.etree import ElementTree

import pytest

from fleetune.drawing.charts import Curve, curves_chart


@pytest.mark.parametrize(
    "points", [[(0.0, 2.0), (5.0, 1.0)], [(3.0, 1.0)], [(0.0, 0.0), (0.0, 0.0)], [(1e-9, 1e9), (1e6, -1e9)]]
)
@pytest.mark.parametrize("target", [None, 1.5])
def test_every_point_lies_in_the_chart(points: list[tuple[float, float]], target: float | None) -> None:
    """One point, equal values and huge ranges are drawn inside the canvas, well-formed, with the target if given."""
    chart = curves_chart([Curve("one", points), Curve("two & more", points)], "losses", target)
    root = ElementTree.fromstring(chart)
    _, _, width, height = map(float, root.attrib["viewBox"].split())
    paths = re.findall(r' d="M([^"]+)"', chart)
    assert len(paths) == 2 and ("limit" in chart) == (target is not None)
    for path in paths:
        for x, y in (map(float, point.split()) for point in path.split("L")):
            assert 0 <= x <= width and 0 <= y <= height
    assert "two &amp; more" in chart


def test_many_names_take_several_rows() -> None:
    """The names of a dozen curves lie beside and below one another, never on top."""
    chart = curves_chart([Curve(f"c{k}", [(0.0, 1.0), (1.0, float(k))]) for k in range(12)], "losses")
    labels = [e for e in ElementTree.fromstring(chart) if e.tag.endswith("text") and (e.text or "").startswith("c")]
    assert len({(label.attrib["x"], label.attrib["y"]) for label in labels}) == 12


def test_nothing_to_draw() -> None:
    """Without points there is no chart."""
    assert curves_chart([], "losses") == curves_chart([Curve("one", [])], "losses") == ""
