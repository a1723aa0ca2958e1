"""Pictures of what is special to a strategy hold what the plan and its timeline say."""

from dataclasses import replace
from itertools import combinations
from xml.etree import ElementTree

import pytest

from fleetune.contracts.metrics import LinkBytes
from fleetune.contracts.plan import FORWARD_ONLY, FULL, SKIP, LinkUse, Share
from fleetune.drawing import gantt, report
from fleetune.drawing.charts import fleet_chart, used_pairs
from fleetune.drawing.gantt import latencies_of, queueing_text, waits
from fleetune.drawing.model_chart import gates_chart
from fleetune.drawing.text import span_text
from fleetune.formatting import seconds
from tests.support.clock import fleets
from tests.support.drawing import hand_made
from tests.support.drawing.contents import by_hand, content, row

SVG = "{http://www.w3.org/2000/svg}"
CLIENTS = ("phone-1", "phone-2")


QUEUED = (
    row("a>h", "a/0F0", 0.0, 0.1),
    row("b>h", "b/0F0", 0.0, 0.2),
    row("h", "a/1F0", 0.1, 1.0),
    row("h", "b/1F0", 1.0, 2.0),
    row("a>h", "a/2B0", 1.5, 1.6),
    row("h", "a/1B0", 2.0, 3.0),
    row("h>a", "a/1B0", 3.0, 3.1),
    row("a", "a/0B0", 3.4, 3.5),
)


def test_a_queue_is_from_the_arrival_of_a_micro_batch_to_its_start() -> None:
    """b arrives while h works for a; a's gradient arrives while h works for b; a itself works for one lane only."""
    found = [(wait.device, wait.action, wait.arrived_s, wait.start_s) for wait in waits(QUEUED)]
    assert found == [("h", "b/1F0", 0.2, 1.0), ("h", "a/1B0", 1.6, 2.0)]
    assert queueing_text(QUEUED) == "queue at h: a 400 ms, b 800 ms"


def test_a_forecast_row_ends_before_its_message_arrives() -> None:
    """A forecast's transfers end when the link is free; the latency that follows is no queue."""
    found = [(wait.action, wait.arrived_s) for wait in waits(QUEUED, {"b>h": 0.5, "a>h": 0.5})]
    assert found == [("b/1F0", 0.7)], "a's gradient arrives after 2.1 s, when h has begun with it by the rows"


def test_an_idle_device_has_no_queue() -> None:
    """Bug: messages wait for a processor before a device has them, and this was drawn as a queue of idle devices."""
    idle = (row("h", "a/1F0", 0.15, 0.2), row("h", "b/1F0", 1.0, 2.0))
    assert waits((*QUEUED[:2], *idle)) == ()
    made = by_hand("lanes")
    times = tuple(replace(each, message_wait_s=0.004) for each in made.profile.times)
    slow = latencies_of(made.fleet, replace(made.profile, times=times))
    plain = latencies_of(made.fleet, made.profile)
    assert {name: slow[name] - plain[name] for name in slow} == pytest.approx(dict.fromkeys(slow, 0.008))


def test_long_names_leave_room_for_the_picture() -> None:
    """Bug: with two devices of long names, the bars of their link lay left of the picture."""
    names = [f"{letter}{'x' * 70}.example.org" for letter in "ab"]
    rows = (row(f"{names[0]}>{names[1]}", "m/0F0", 0.0, 1.0), row(names[1], "m/1F0", 1.0, 2.0))
    drawn = ElementTree.fromstring(gantt(rows, "t"))
    found = [rect for rect in drawn.iter(f"{SVG}rect") if "bar" in rect.get("class", "").split()]
    assert len(found) == 2 and all(float(rect.get("width") or 0) > 200 for rect in found)
    assert all(float(rect.get("x") or 0) >= 0 for rect in drawn.iter(f"{SVG}rect"))
    many = tuple(row(f"raspberry-pi-{k:02d}", f"raspberry-pi-{k:02d}/0F0", 0.0, 1.0) for k in range(8))
    keys = [rect for rect in ElementTree.fromstring(gantt(many, "t")).iter(f"{SVG}rect") if rect.get("width") == "11"]
    assert len(keys) > 8 and all(float(rect.get("x") or 0) >= 0 for rect in keys)


def test_a_queue_is_drawn_below_its_device_with_every_wait() -> None:
    """A wait is as wide on the axis as it is long, in its lane's colour; a chart without queues has no track of one."""
    drawn = ElementTree.fromstring(gantt(QUEUED, "t"))
    found = [rect for rect in drawn.iter(f"{SVG}rect") if rect.get("class") == "wait"]
    assert len(found) == 2
    assert float(found[0].get("width") or 0) / float(found[1].get("width") or 1) == pytest.approx(2, rel=0.02)
    assert (found[0].findtext(f"{SVG}title") or "").splitlines() == ["b/1F0 waits for h", "200 ms to 1 s, 800 ms"]
    assert found[0].get("style", "").startswith("fill:var(--s1)") and found[1].get("style", "").startswith(
        "fill:var(--s0)"
    )
    tracks = [text.text for text in drawn.iter(f"{SVG}text")]
    assert tracks.index("queue of h") == tracks.index("h") + 1
    assert "queue of" not in gantt(content().forecast.rows, "t")


def test_reports_of_helpers_say_what_a_queue_is() -> None:
    """Both timelines of split learning have the queues of both helpers; other reports do not mention queues."""
    page = report(by_hand("lanes"))
    assert page.count(">queue of tower-1</text>") == page.count(">queue of tower-2</text>") == 2
    assert "In a queue, a micro-batch has arrived" in page
    assert "queue" not in report(content())


def test_reports_of_averages_say_what_a_round_takes_with_its_part() -> None:
    """An average after every fourth round adds a quarter of itself; without averages nothing is said."""
    averaged = by_hand("lanes", average_every_rounds=4)
    said = averaged.forecast
    assert said.average_s > 0
    page = report(averaged)
    assert f"part of an average a round takes {seconds(said.round_s + said.average_s / 4)}." in page
    assert "part of an average" not in report(by_hand("lanes", average_every_rounds=0))


@pytest.mark.parametrize("name", hand_made.PLANS)
def test_links_in_use_are_those_over_which_the_forecast_sends(name: str) -> None:
    """Between devices without a strong line nothing is sent."""
    made = by_hand(name)
    sent = {frozenset((link.source, link.target)) for link in made.forecast.link_bytes if link.bytes}
    assert used_pairs(made.plan.plan) == sent


def test_a_group_uses_the_links_of_its_ring() -> None:
    """Devices that share samples exchange gradients with each other, too."""
    made = content()
    sent = {frozenset((link.source, link.target)) for link in made.forecast.link_bytes if link.bytes}
    assert used_pairs(made.plan.plan) == sent == {frozenset("ab"), frozenset("ac"), frozenset("bc")}


def test_a_link_that_only_gradients_of_shared_weights_cross_is_used() -> None:
    """A plan does not say which weights are shared; its forecast does."""
    made = by_hand("links")
    idle = [pair for pair in combinations([each.name for each in made.fleet.devices], 2)
            if frozenset(pair) not in used_pairs(made.plan.plan)]  # fmt: skip
    sent = tuple(LinkBytes(source=a, target=b, bytes=1) for a, b in idle)

    def faint(sent: tuple[LinkBytes, ...]) -> int:
        drawn = ElementTree.fromstring(fleet_chart(made.fleet, made.plan.plan, sent))
        return sum("idle" in each.get("class", "") for each in drawn.iter(f"{SVG}line"))

    assert faint(()) == len(idle) > 0 and faint(sent) == 0


def test_codecs_and_shares_stand_at_their_links() -> None:
    """Both compressed links are dashed with what each direction does; a link that is only shared is not dashed."""
    made = by_hand("links")
    drawn = ElementTree.fromstring(fleet_chart(made.fleet, made.plan.plan))
    dashed = [each for each in drawn.iter(f"{SVG}line") if "coded" in each.get("class", "")]
    assert len(dashed) == 2 and all("idle" not in each.get("class", "") for each in dashed)
    texts = [text.text for text in drawn.iter(f"{SVG}text")]
    for said in ("to laptop-2: top-k 1/100", "to tower-1: top-k 1/100, 0.25 of the medium", "to tower-2: top-k 1/12.5"):
        assert said in texts
    page = report(made)
    assert "Dashed links are compressed" in page and "Dashed" not in report(by_hand("deft"))


def _expect_apart(drawn: ElementTree.Element) -> None:
    """No text or circle covers another one."""
    found = []
    for text in drawn.iter(f"{SVG}text"):
        x, y, wide = float(text.get("x") or 0), float(text.get("y") or 0), 3 * len(text.text or "")
        found.append((x - wide, y - 10, x + wide, y + 2))
    for circle in drawn.iter(f"{SVG}circle"):
        x, y, r = (float(circle.get(name) or 0) for name in ("cx", "cy", "r"))
        found.append((x - r, y - r, x + r, y + r))
    for one, other in combinations(found, 2):
        assert not (one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]), (one, other)


@pytest.mark.parametrize("name", hand_made.PLANS)
def test_no_text_of_the_fleet_covers_another(name: str) -> None:
    """Bug: what a link is used for was written over the names of devices."""
    _expect_apart(ElementTree.fromstring(fleet_chart(hand_made.FLEET, hand_made.PLANS[name])))


@pytest.mark.parametrize(("count", "shared"), [(2, 1), (3, 2), (8, 7), (13, 12), (20, 19), (40, 39), (40, 3)])
def test_devices_of_a_large_fleet_have_room(count: int, shared: int) -> None:
    """Bug: from about 13 devices on, names stood on the circles of others."""
    names = [f"client-{number}" for number in range(count)]
    lanes = {name: (replace(hand_made.segment(0, 9, name), shares=(Share(device=name, samples=4),)),) for name in names}
    uses = tuple(
        LinkUse(source=name, target=names[0], share=0.5 / count) for name in names[1 :: (count - 1) // shared][:shared]
    )
    plan = replace(hand_made.plan("many", lanes, 1), links=uses, collector=names[0])
    fleet = fleets.fleet(*(fleets.device(name, 60_000) for name in names), bytes_per_s=2e5)
    drawn = ElementTree.fromstring(fleet_chart(fleet, plan))
    _expect_apart(drawn)
    said = [text.text for text in drawn.iter(f"{SVG}text")]
    assert any("of the medium" in text for text in said if text) == (shared <= 8), "more stand in the table alone"


def test_the_area_of_gates_is_what_the_plan_decides() -> None:
    """Heads are numbered, and full, forward-only and skipped cells have the share that the digits have."""
    plan = hand_made.PLANS["gates"]
    drawn = ElementTree.fromstring(gates_chart(plan))
    texts = [text.text for text in drawn.iter(f"{SVG}text")]
    assert texts[texts.index("head") :][:7] == ["head", "0", "1", "2", "3", "4", "5"]
    digits = "".join(gate.operations for gate in plan.gates)
    wide = dict.fromkeys((FULL, FORWARD_ONLY, SKIP), 0.0)
    for group in drawn.iter(f"{SVG}g"):
        for rect in group.iter(f"{SVG}rect"):
            style = rect.get("style", "")
            kind = SKIP if "line" in style else FORWARD_ONLY if "opacity" in style else FULL
            wide[kind] += float(rect.get("width") or 0) + 0.4
    for kind, width in wide.items():
        assert width / sum(wide.values()) == pytest.approx(digits.count(kind) / len(digits), abs=0.01)


def test_names_of_adapted_units_are_short() -> None:
    """What PEFT puts before every name is left out."""
    names = ("base_model.model.bert.embeddings", "base_model.model.classifier")
    assert span_text(names) == "bert.embeddings .. classifier (2 units)"
