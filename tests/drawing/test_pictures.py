"""SVG and HTML: well formed, self-contained, and with everything in it."""

import re
from dataclasses import replace
from html.parser import HTMLParser
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleetune.clock import forecast
from fleetune.contracts.timeline import Row
from fleetune.drawing import ReportContent, gantt, report
from fleetune.drawing.quantities import percent, rate, seconds, size, steps
from fleetune.planning import solve
from tests.clock import fleets
from tests.drawing.contents import content
from tests.planning.instances import small

SVG = "{http://www.w3.org/2000/svg}"
VOID = {"meta", "link", "br", "img", "hr", "input"}


class Balanced(HTMLParser):
    """Counts tags that are opened, and fails on one closed out of turn."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.text: list[str] = []

    def handle_starttag(self, tag: str, attrs: object) -> None:
        """Remember it, unless it never closes."""
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        """The last one opened closes first."""
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        """Text that a reader sees."""
        self.text.append(data)


def bars(svg: str) -> list[ElementTree.Element]:
    """Rectangles that stand for a row of the timeline."""
    found = ElementTree.fromstring(svg).iter(f"{SVG}rect")
    return [rect for rect in found if rect.get("class", "").startswith("bar ")]


def test_a_gantt_chart_has_a_bar_with_a_tooltip_for_every_row() -> None:
    """Forward, backward, all-reduce and links have classes of their own; the tooltip tells action, device and times."""
    rows = content().forecast.rows
    drawn = bars(gantt(rows, "forecast"))
    assert len(drawn) == len(rows)
    assert {(rect.get("class") or "").split()[1] for rect in drawn} == {"F", "B", "R"}
    hints = [rect.findtext(f"{SVG}title") or "" for rect in drawn]
    assert hints[0].splitlines()[:2] == ["main/0F0 (forward) on a", "0 s to 12.3 ms, 12.3 ms"]


def test_bars_stand_where_their_times_are() -> None:
    """A row of the second half starts in the middle and is as wide as the first."""
    rows = (
        Row(device="a", lane="main", action="main/0F0", start_s=0, end_s=1),
        Row(device="a", lane="main", action="main/0B0", start_s=1, end_s=2),
    )
    first, second = bars(gantt(rows, "t"))
    x, wide = float(first.get("x") or 0), float(first.get("width") or 0)
    assert float(second.get("x") or 0) == pytest.approx(x + wide, abs=0.05)
    assert float(second.get("width") or 0) == pytest.approx(wide, abs=0.05)


@pytest.mark.parametrize("rows", [(), (Row(device="a&b", lane="main", action="?", start_s=0, end_s=0),)])
def test_nothing_and_the_unknown_are_drawn_too(rows: tuple[Row, ...]) -> None:
    """No rows, no time, an action nobody knows, a name with markup in it: still one whole SVG."""
    assert len(bars(gantt(rows, "<odd>"))) == len(rows)


def test_a_report_is_one_whole_page_that_links_to_nothing() -> None:
    """Tags close in turn; no script, and no address but the name of the SVG namespace."""
    page = report(content())
    parser = Balanced()
    parser.feed(page)
    assert parser.open == []
    assert "<script" not in page and "src=" not in page and "href=" not in page and "url(" not in page
    assert set(re.findall(r"https?://[^\s\"<]+", page)) == {"http://www.w3.org/2000/svg"}
    assert "demo: a small model &lt;on&gt; three devices" in page


def test_a_report_tells_everything() -> None:
    """Scores, round, fleet, cut, both timelines, loss, memory, links, citation, facts."""
    made = content()
    page = report(made)
    parser = Balanced()
    parser.feed(page)
    text = " ".join(" ".join(parser.text).split())
    for words in ("accuracy", "0.86", "+0.76", "239 ms", "221 ms", "a → c", "main/1", "u0 .. u2 (3 units)"):
        assert words in text
    for words in ("measured, a typical round", "loss", "4.35 kB forecast", "4.79 kB measured", "GPipe", "4f4f4f4f"):
        assert words in text
    assert page.count("<svg") == 7
    assert len(bars(chart(page, "forecast"))) == len(made.forecast.rows)


def test_a_report_tells_how_long_profiling_took() -> None:
    """Of every device that was measured; the column is left out where none was."""
    made = content()
    first, *rest = made.profile.times
    timed = replace(made.profile, times=(replace(first, profiling_s=150.0), *rest))
    assert "profiled in" not in report(made)
    page = report(replace(made, profile=timed))
    assert page.count("profiled in") == 1 and page.count("2 min 30 s") == 1


def test_both_timelines_have_the_same_scale_and_tracks() -> None:
    """A measured round that is 8 % longer has bars 8 % wider on the same lines."""
    page = report(content())
    said, ran = bars(chart(page, "forecast")), bars(chart(page, "measured, a typical round"))
    assert [rect.get("y") for rect in said] == [rect.get("y") for rect in ran]
    assert float(ran[0].get("width") or 0) / float(said[0].get("width") or 1) == pytest.approx(1.08, abs=0.01)


def chart(page: str, name: str) -> str:
    """One SVG out of the page."""
    return next(svg for svg in re.findall(r"<svg.*?</svg>", page, re.DOTALL) if f'aria-label="{name}"' in svg)


def test_one_device_and_no_rounds_make_a_report_too() -> None:
    """A fleet without links, a run that trained nothing: no empty picture, no failure."""
    problem = replace(small(), fleet=fleets.fleet(fleets.device("a")))
    result = solve("single", problem, now=lambda: 0.0)
    full = content()
    lonely = ReportContent(
        title="alone",
        fleet=problem.fleet,
        profile=problem.profile,
        plan=result,
        forecast=forecast(result.plan, problem.fleet, problem.profile),
        training=replace(full.training, rounds=(), timeline=(), link_bytes=(), peak_memory_bytes=()),
        evaluation=full.evaluation,
    )
    page = report(lonely)
    parser = Balanced()
    parser.feed(page)
    assert parser.open == [] and "Bytes of each link" not in page


@pytest.mark.parametrize(
    ("shown", "expected"),
    [
        (seconds(0.00123), "1.23 ms"),
        (seconds(0.99999), "1 s"),
        (seconds(150), "2 min 30 s"),
        (seconds(0), "0 s"),
        (size(4_560_000), "4.56 MB"),
        (size(999), "999 B"),
        (rate(12.5e6), "12.5 MB/s"),
        (percent(-0.074), "-7.4 %"),
    ],
)
def test_quantities_read_as_people_write_them(shown: str, expected: str) -> None:
    """Three digits and a unit."""
    assert shown == expected


@given(st.floats(1e-9, 1e9), st.integers(3, 10))
def test_ticks_are_few_even_and_within(until: float, most: int) -> None:
    """At most `most` after 0, none beyond the end, and the next one would be."""
    ticks = steps(until, most)
    assert ticks[0] == 0 and 1 <= len(ticks) - 1 <= most
    assert ticks[-1] <= until * (1 + 1e-6) < (ticks[-1] + ticks[1]) * (1 + 1e-5)
