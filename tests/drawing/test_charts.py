"""SVG and HTML output: well-formed, self-contained and complete."""

import re
from dataclasses import replace
from html.parser import HTMLParser
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleetune.clock import forecast
from fleetune.contracts.metrics import Interval, TimelineRow
from fleetune.contracts.plan import DeviceOrder
from fleetune.drawing import ReportContent, gantt, report
from fleetune.drawing.charts import fleet_chart, round_chart
from fleetune.drawing.model_chart import gates_chart, model_chart
from fleetune.drawing.svg import axis_ticks, colours_of_devices, short_names
from fleetune.errors import Refused
from fleetune.planning import solve
from tests.support.clock import fleets
from tests.support.drawing import hand_made
from tests.support.drawing.contents import by_hand, content, content_of
from tests.support.planning.instances import small

SVG = "{http://www.w3.org/2000/svg}"
VOID = {"meta", "link", "br", "img", "hr", "input"}


class Balanced(HTMLParser):
    """Counts opened tags, and fails on one closed out of order."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.text: list[str] = []

    def handle_starttag(self, tag: str, attrs: object) -> None:
        """Push the tag unless it is void."""
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        """Pop the tag, which must be the last opened one."""
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        """Collect visible text."""
        self.text.append(data)


def bars(svg: str) -> list[ElementTree.Element]:
    """Rectangles of timeline rows."""
    found = ElementTree.fromstring(svg).iter(f"{SVG}rect")
    return [rect for rect in found if rect.get("class", "").startswith("bar ")]


def test_a_round_is_drawn_with_the_interval_of_its_forecast() -> None:
    """The bar spans the interval and holds the forecast's mark; below lie a dot for every measured round and the mark
    of their median. The page says the range; without an interval nothing is drawn."""
    run = content()
    assert run.training is not None
    assert round_chart(run.forecast, run.training) == "" and " to " not in tile(report(run), "forecast (")
    foreseen = replace(
        run.forecast, interval=Interval(low_s=run.forecast.round_s * 0.9, high_s=run.forecast.round_s * 1.2)
    )
    drawn = ElementTree.fromstring(round_chart(foreseen, run.training))
    (interval,) = [rect for rect in drawn.iter(f"{SVG}rect") if rect.get("class") == "bar F"]
    x, width = float(interval.get("x", "")), float(interval.get("width", ""))
    marks = [float(each.get("x1", "")) for each in drawn.iter(f"{SVG}line") if each.get("class") != "rule"]
    assert x < marks[0] < x + width and (marks[0] - x) / width == pytest.approx(1 / 3, abs=0.02)
    assert len(marks) == 2 and len(list(drawn.iter(f"{SVG}circle"))) == len(run.training.rounds)
    assert "to" in tile(report(replace(run, forecast=foreseen, training=None, evaluation=None)), "a round, forecast")
    assert "to" in report(replace(run, forecast=foreseen))


def tile(page: str, words: str) -> str:
    """The text of a page from some words to the end of their element."""
    return page[page.index(words) :].split("</span>")[0]


def test_a_gantt_chart_has_a_bar_with_a_tooltip_for_every_row() -> None:
    """Every row has a bar with its class and a tooltip with action, device and times."""
    rows = content().forecast.rows
    drawn = bars(gantt(rows, "forecast"))
    assert len(drawn) == len(rows)
    assert {(rect.get("class") or "").split()[1] for rect in drawn} == {"F", "B", "R"}
    hints = [rect.findtext(f"{SVG}title") or "" for rect in drawn]
    assert hints[0].splitlines()[:2] == ["main/0F0 (forward) on a", "0 s to 12.3 ms, 12.3 ms"]


def test_bars_stand_where_their_times_are() -> None:
    """A row of the second half starts in the middle and is as wide as one of the first."""
    rows = (
        TimelineRow(device="a", lane="main", action="main/0F0", start_s=0, end_s=1),
        TimelineRow(device="a", lane="main", action="main/0B0", start_s=1, end_s=2),
    )
    first, second = bars(gantt(rows, "t"))
    x, wide = float(first.get("x") or 0), float(first.get("width") or 0)
    assert float(second.get("x") or 0) == pytest.approx(x + wide, abs=0.05)
    assert float(second.get("width") or 0) == pytest.approx(wide, abs=0.05)


@pytest.mark.parametrize("rows", [(), (TimelineRow(device="a&b", lane="main", action="?", start_s=0, end_s=0),)])
def test_nothing_and_the_unknown_are_drawn_too(rows: tuple[TimelineRow, ...]) -> None:
    """No rows, zero time, unknown actions and names with markup still give a well-formed SVG."""
    assert len(bars(gantt(rows, "<odd>"))) == len(rows)


def test_a_report_is_one_whole_page_that_links_to_nothing() -> None:
    """The page is well-formed, has no script, and no address except the SVG namespace."""
    page = report(content())
    parser = Balanced()
    parser.feed(page)
    assert parser.open == []
    assert "<script" not in page and "src=" not in page and "href=" not in page and "url(" not in page
    assert set(re.findall(r"https?://[^\s\"<]+", page)) == {"http://www.w3.org/2000/svg"}
    assert "demo: a small model &lt;on&gt; three devices" in page


@pytest.mark.parametrize(("budget", "told"), [(1.2, True), (10.0, False)])
def test_a_report_tells_of_memory_that_may_not_suffice(budget: float, told: bool) -> None:
    """Peaks are 10 % above the forecast, which matters where a device has little more than that."""
    made = content()
    needed = {each.device: each.amount for each in made.forecast.memory_bytes}
    devices = (replace(each, memory_bytes=int(budget * needed.get(each.name, 1e6))) for each in made.fleet.devices)
    page = report(replace(made, fleet=replace(made.fleet, devices=tuple(devices))))
    assert ("plans that need most of its" in page) == told


def test_a_report_tells_everything() -> None:
    """The page shows scores, round, fleet, segments, both timelines, loss, memory, links, citation and facts."""
    made = content()
    page = report(made)
    parser = Balanced()
    parser.feed(page)
    text = " ".join(" ".join(parser.text).split())
    for words in ("accuracy", "0.86", "+0.76", "239 ms", "221 ms", "a → c", "main/1", "u0 .. u2 (3 units)"):
        assert words in text
    for words in ("measured, a typical round", "loss", "5.35 kB forecast", "5.89 kB measured", "GPipe", "4f4f4f4f"):
        assert words in text
    assert page.count("<svg") == 7
    assert len(bars(chart(page, "forecast"))) == len(made.forecast.rows)


def test_a_report_names_the_gpus() -> None:
    """`cuda:0` alone does not say what computed; a name is text, whatever a device calls its own."""
    run = content()
    first, *others = run.fleet.devices
    gpu = replace(first, accelerator="cuda:0", accelerator_name="NVIDIA <b>H200")
    page = report(replace(run, fleet=replace(run.fleet, devices=(gpu, *others))))
    assert "cuda:0, NVIDIA &lt;b&gt;H200" in page and "<b>H200" not in page


def test_a_report_tells_how_long_profiling_took() -> None:
    """The page shows profiling times, and omits the column if nothing was measured."""
    made = content()
    first, *rest = made.profile.times
    timed = replace(made.profile, times=(replace(first, profiling_s=150.0), *rest))
    assert "profiled in" not in report(made)
    page = report(replace(made, profile=timed))
    assert page.count("profiled in") == 1 and page.count("2 min 30 s") == 1


def test_both_timelines_have_the_same_scale_and_tracks() -> None:
    """A measured round that is 8 % longer has 8 % wider bars on the same tracks."""
    page = report(content())
    said, ran = bars(chart(page, "forecast")), bars(chart(page, "measured, a typical round"))
    assert [rect.get("y") for rect in said] == [rect.get("y") for rect in ran]
    assert float(ran[0].get("width") or 0) / float(said[0].get("width") or 1) == pytest.approx(1.08, abs=0.01)


def chart(page: str, name: str) -> str:
    """Extract one SVG from the page."""
    return next(svg for svg in re.findall(r"<svg.*?</svg>", page, re.DOTALL) if f'aria-label="{name}"' in svg)


def test_one_device_and_no_rounds_make_a_report_too() -> None:
    """A fleet without links and a run without rounds give a report without empty charts."""
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


@pytest.mark.parametrize("name", hand_made.PLANS)
def test_plans_made_by_hand_make_whole_reports(name: str) -> None:
    """Reports of hand-made plans are well-formed, with a bar for every row, and gates only if there are some."""
    made = by_hand(name)
    page = report(made)
    parser = Balanced()
    parser.feed(page)
    assert parser.open == []
    assert len(bars(chart(page, "forecast"))) == len(made.forecast.rows)
    assert page.count("<svg") == 7 + (name == "gates")
    assert "<details>" in page  # 30 links are folded


def test_reports_tell_what_plans_decide_beyond_a_chain() -> None:
    """Reports show trained units, links, the collector, lanes and gates."""
    pages = {name: report(by_hand(name)) for name in hand_made.PLANS}
    assert "rounds of\n8 samples in each of 4 lanes." in pages["lanes"]
    assert "Gradients go to tower-1, which hands out new parameters." in pages["deft"]
    for words in ("<th>trains</th>", "<td>layer.3 .. layer.4 (2 units)</td>", "<td>0.125 of the medium</td>"):
        assert words in pages["deft"] and words not in pages["lanes"]
    assert "<summary>30 links between them, 4 of them compressed or shared</summary>" in pages["links"]
    assert "<td>top-k 1/100, 0.25 of the medium: " in pages["links"]
    assert "<h2>Gates</h2>" in pages["gates"] and "<h2>Gates</h2>" not in pages["links"]


def test_what_a_segment_trains_is_what_is_counted_as_trained() -> None:
    """phone-1 hosts nine units of 1 kB and trains three of them."""
    page = " ".join(report(by_hand("deft")).split())
    assert '<td class="n">9 kB</td> <td class="n">3 kB</td>' in page


def test_lanes_have_colours_of_their_own_in_every_picture() -> None:
    """The second lane has colour s1 in every chart; a helper of both lanes has neither lane's colour."""
    made = by_hand("lanes")
    second = [r for r in bars(chart(report(made), "forecast")) if "phone-2/" in (r.findtext(f"{SVG}title") or "")]
    assert {(r.get("style") or "").split(";")[0] for r in second} == {"fill:var(--s1)"}
    assert {(r.get("class") or "").split()[1] for r in second if "opacity" in (r.get("style") or "")} == {"B"}
    colours = colours_of_devices(made.plan.plan)
    assert colours["phone-2"] == "var(--s1)" and colours["tower-1"] == "var(--other)"
    assert model_chart(made.plan.plan, made.fleet, made.profile).count("fill:var(--s1)") == 9


def test_bars_of_lanes_say_as_much_as_fits() -> None:
    """Bars show lane and micro-batch, or a short lane name; micro-batches only if there are several."""
    rows = [
        TimelineRow(device="a", lane="client-1", action="client-1/0F0", start_s=0, end_s=60),
        TimelineRow(device="a", lane="client-2", action="client-2/0F0", start_s=60, end_s=160),
        TimelineRow(device="b", lane="client-2", action="client-2/0F1", start_s=0, end_s=4),
        TimelineRow(device="b", lane="client-1", action="client-1/0U0", start_s=20, end_s=26),
    ]
    drawn = ElementTree.fromstring(gantt(rows, "t"))
    texts = [text.text for text in drawn.iter(f"{SVG}text") if text.get("font-size") == "10"]
    assert texts == ["client-1", "client-2 0", "2 1", "1 U"]


def test_names_are_cut_to_what_tells_them_apart() -> None:
    """Names are shortened to their final numbers; other names are unchanged."""
    assert short_names(["client-1", "client-12"]) == ["1", "12"]
    assert short_names(["c10", "c11"]) == ["10", "11"]
    for names in (["c", "c1"], ["alpha", "alps"], ["phone-1", "laptop-1"]):
        assert short_names(names) == names
    assert short_names(["main"]) == ["main"]


def test_an_update_has_a_class_and_a_word() -> None:
    """Updates have their own class and word on the collector's links."""
    drawn = [r for r in bars(chart(report(by_hand("deft")), "forecast")) if "bar U" in (r.get("class") or "")]
    assert len(drawn) == 8
    assert "(update) on tower-1>phone-1" in (drawn[0].findtext(f"{SVG}title") or "")


def test_the_cut_shows_what_is_not_trained_in_light() -> None:
    """Each lane has a row on a common scale; frozen units are light and take a third, because they have no backward."""
    made = by_hand("deft")
    rects = list(ElementTree.fromstring(model_chart(made.plan.plan, made.fleet, made.profile)).iter(f"{SVG}rect"))
    light = ["opacity" in (rect.get("style") or "") for rect in rects]
    assert [light[9 * k : 9 * k + 9].count(False) for k in range(4)] == [3, 2, 1, 2]
    widths = [float(rect.get("width") or 0) for rect in rects[:9]]
    assert widths[8] / widths[0] == pytest.approx(3, rel=0.05)


def test_gates_leave_units_as_wide_as_what_is_left_of_them() -> None:
    """With half of the operations full and a third forward-only, 5/6 + 2·1/2 of 1 + 2 parts of time remain."""
    plan = hand_made.PLANS["gates"]
    rects = list(ElementTree.fromstring(model_chart(plan, hand_made.FLEET, hand_made.PROFILE)).iter(f"{SVG}rect"))
    widths = [float(rect.get("width") or 0) + 1 for rect in rects[:5]]
    assert widths[1] / widths[0] == pytest.approx((5 / 6 + 1) / 3, rel=0.01)


def test_gates_are_drawn_head_by_head_with_their_digits() -> None:
    """36 heads of six blocks are drawn, runs of equal cells as one rectangle; without gates nothing is drawn."""
    plan = hand_made.PLANS["gates"]
    groups = list(ElementTree.fromstring(gates_chart(plan)).iter(f"{SVG}g"))
    assert len(groups) == 36
    assert groups[0].findtext(f"{SVG}title") == "layer.0#0\n11223 11223 11223 11223"
    assert len(list(groups[0].iter(f"{SVG}rect"))) == 12  # 11 22 3, four times
    assert len(list(groups[5].iter(f"{SVG}rect"))) == 1  # always full
    assert gates_chart(hand_made.PLANS["links"]) == ""


def test_the_collector_has_a_rim() -> None:
    """The collector has a rim and a tooltip."""
    made = by_hand("deft")
    circles = list(ElementTree.fromstring(fleet_chart(made.fleet, made.plan.plan)).iter(f"{SVG}circle"))
    rims = [circle for circle in circles if "stroke-width:3" in (circle.get("style") or "")]
    assert [(rim.findtext(f"{SVG}title") or "").split(":")[0] for rim in rims] == ["tower-1"]


def test_many_lanes_are_drawn_low_and_their_segments_folded() -> None:
    """Twelve clients get low bars without captions, a folded table, and no legend of twelve colours."""
    clients = [f"client-{k}" for k in range(12)]
    fleet = fleets.fleet(*(fleets.device(name) for name in (*clients, "tower")))
    profile = fleets.profile(hand_made.UNITS, dict.fromkeys((*clients, "tower"), 0.001))
    lanes = {
        name: (hand_made.segment(0, 2, name), hand_made.segment(2, 7, "tower"), hand_made.segment(7, 9, name))
        for name in clients
    }
    orders = [DeviceOrder(device=c, actions=(f"{c}/0F0", f"{c}/2F0", f"{c}/2B0", f"{c}/0B0")) for c in clients]
    orders.append(DeviceOrder(device="tower", actions=tuple(f"{c}/1{letter}0" for letter in "FB" for c in clients)))
    plan = replace(hand_made.plan("many", lanes, 1), order=tuple(orders))
    result = replace(by_hand("lanes").plan, plan=plan)
    page = report(content_of(result, fleet, profile))
    assert "<summary>36 segments</summary>" in page and "<summary>156 links between them</summary>" in page
    cut = ElementTree.fromstring(chart(page, "the model cut into segments"))
    assert [text.text for text in cut.iter(f"{SVG}text")] == clients
    legend = [text.text for text in ElementTree.fromstring(chart(page, "forecast")).iter(f"{SVG}text")][:3]
    assert legend == ["forecast", "backward", "forward"]


@given(st.floats(1e-9, 1e9), st.integers(3, 10))
def test_ticks_are_few_even_and_within(until: float, most: int) -> None:
    """Axis ticks are even, at most `most` after 0, and end within one step of the end."""
    ticks = axis_ticks(until, most)
    assert ticks[0] == 0 and 1 <= len(ticks) - 1 <= most
    assert ticks[-1] <= until * (1 + 1e-6) < (ticks[-1] + ticks[1]) * (1 + 1e-5)


def test_a_plan_alone_makes_a_page() -> None:
    """Without training the page shows only the forecast."""
    page = report(replace(content(), training=None, evaluation=None))
    reader = Balanced()
    reader.feed(page)
    text = " ".join(reader.text)
    assert not reader.open
    assert "Nothing was trained" in text and "a round, forecast" in text
    assert "measured" not in text.split("Fleet", 1)[1] and "Loss" not in text


def test_half_of_a_result_is_refused() -> None:
    """Scores without training metrics are refused."""
    with pytest.raises(Refused, match="training and evaluation belong together"):
        replace(content(), training=None)


def test_an_average_over_lanes_is_drawn_apart_from_the_round() -> None:
    """Both pictures have a bar per link and segment, and the round's have none of them."""
    made = by_hand("lanes")
    plan = replace(made.plan.plan, average_every_rounds=5)
    assert "An average of the lanes" not in report(made) and made.training is not None
    said = forecast(plan, hand_made.FLEET, hand_made.PROFILE)
    later = tuple(replace(row, end_s=row.end_s * 1.5) for row in said.average)
    averaged = replace(
        made, plan=replace(made.plan, plan=plan), forecast=said, training=replace(made.training, average=later)
    )
    page = report(averaged)
    assert "An average of the lanes, after every 5 rounds" in page and said.average
    for name in ("an average, forecast", "an average, measured"):
        assert len(bars(chart(page, name))) == len(said.average)
    assert len(bars(chart(page, "forecast"))) == len(said.rows)
