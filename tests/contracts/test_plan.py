"""The plan language: neutral values are not written, and invalid values are refused."""

import json
from dataclasses import replace
from typing import Any

import pytest

from fleetune.contracts import json_io
from fleetune.contracts.plan import (
    Action,
    Gate,
    Lane,
    LinkUse,
    Plan,
    Segment,
    Share,
    actions_of,
    parse_action,
)
from fleetune.errors import Refused
from tests.support.clock import fleets

OLD = """{
 "strategy": "pp",
 "micro_batch_samples": 4,
 "micro_batches": 3,
 "lanes": [
  {
   "name": "main",
   "segments": [
    {
     "units": [
      "u0"
     ],
     "shares": [
      {
       "device": "a",
       "samples": 4
      }
     ],
     "warmup": 1
    }
   ]
  }
 ],
 "order": [],
 "revision": 0
}
"""
"""A plan as it was written before plans had links, gates, collectors and trained parts."""

FULL = replace(
    json_io.parse(Plan, OLD, "plan"),
    lanes=(
        Lane(
            name="main",
            segments=(
                Segment(units=("u0", "u1"), shares=(Share(device="a", samples=4),), warmup=1, trains=("u1",)),
                Segment(units=("u2",), shares=(Share(device="b", samples=4),), warmup=1),
                Segment(units=("u3",), shares=(Share(device="a", samples=4),), warmup=1),
            ),
        ),
    ),
    links=(LinkUse(source="a", target="b", codec="top-k", ratio=100.0, share=0.25),),
    gates=(Gate(subnet="encoder.layer.3#2", operations="123"),),
    collector="s",
)
"""A plan with all of them."""


def changed(path: str, value: Any) -> str:
    """FULL as JSON with the value at a path such as `links.0.codec` replaced or set."""
    plain = json_io.dump(FULL)
    *way, last = path.split(".")
    place: Any = plain
    for part in way:
        place = place[int(part) if part.isdigit() else part]
    place[int(last) if last.isdigit() else last] = value
    return json.dumps(plain)


def test_a_plan_file_of_before_reads_and_writes_byte_for_byte() -> None:
    """A plan of an older version reads and writes byte for byte."""
    assert json_io.text(json_io.parse(Plan, OLD, "plan")) == OLD


def test_a_plan_with_everything_survives_json() -> None:
    """Every field is written and read back; segments that train everything do not write it."""
    assert json_io.parse(Plan, json_io.text(FULL), "plan") == FULL
    plain = json_io.dump(FULL)
    assert [*plain][-3:] == ["links", "gates", "collector"]
    assert [segment.get("trains") for segment in plain["lanes"][0]["segments"]] == [["u1"], None, None]
    assert plain["links"] == [{"source": "a", "target": "b", "codec": "top-k", "ratio": 100.0, "share": 0.25}]


def test_neutral_values_may_be_spelled_out() -> None:
    """Explicit neutral values equal omitted ones."""
    plain = json.loads(OLD)
    plain |= {"links": [], "gates": [], "collector": ""}
    plain["lanes"][0]["segments"][0]["trains"] = []
    assert json_io.text(json_io.load(Plan, plain, "plan")) == OLD


def test_a_chain_has_one_lane_and_nothing_else() -> None:
    """A second lane or any decided field makes a plan no chain."""
    chain = json_io.parse(Plan, OLD, "plan")
    lane, segment = chain.lanes[0], chain.lanes[0].segments[0]
    assert chain.is_chain and fleets.PLAN.is_chain
    for other in (
        replace(chain, lanes=(lane, replace(lane, name="more"))),
        replace(chain, lanes=(replace(lane, segments=(replace(segment, trains=("u0",)),)),)),
        replace(chain, links=FULL.links),
        replace(chain, gates=FULL.gates),
        replace(chain, collector="a"),
        replace(chain, lanes=(replace(lane, micro_batches=1),)),
    ):
        assert not other.is_chain


def test_a_device_that_comes_back_makes_no_chain() -> None:
    """A plan in which a runs the first and the last segment is no chain."""
    back = tuple(replace(segment, trains=()) for segment in FULL.lanes[0].segments)
    plan = replace(FULL, lanes=(Lane(name="main", segments=back),), links=(), gates=(), collector="")
    assert not plan.is_chain
    assert plan.devices == ("a", "b")


def test_a_collector_without_units_is_the_last_device() -> None:
    """A collector without units is the last device; one with units keeps their place."""
    assert FULL.devices == ("a", "b", "s")
    assert replace(FULL, collector="b").devices == ("a", "b")


def test_a_lane_may_have_fewer_micro_batches_but_not_more() -> None:
    """Its devices' actions are fewer; a file without the field means the plan's number."""
    chain = json_io.parse(Plan, OLD, "plan")
    fewer = replace(chain, micro_batches=4, lanes=(replace(chain.lanes[0], micro_batches=2),))
    assert json_io.parse(Plan, json_io.text(fewer), "plan") == fewer
    assert fewer.micro_batches_of(fewer.lanes[0]) == 2 and chain.micro_batches_of(chain.lanes[0]) == chain.micro_batches
    assert len(actions_of(fewer, fewer.devices[0])) == 2 * 2
    with pytest.raises(Refused, match="lane main has 9 micro-batches, and a round has at most 4"):
        replace(fewer, lanes=(replace(chain.lanes[0], micro_batches=9),))


def test_what_is_neutral_says_so() -> None:
    """Links, gates and segments know whether they are neutral."""
    assert LinkUse(source="a", target="b").is_neutral
    assert LinkUse(source="a", target="b", codec="top-k").is_neutral
    assert not LinkUse(source="a", target="b", codec="int8").is_neutral
    assert not FULL.links[0].is_neutral and not LinkUse(source="a", target="b", share=0.5).is_neutral
    assert Gate(subnet="s", operations="111").is_neutral and not FULL.gates[0].is_neutral
    assert [segment.trained for segment in FULL.lanes[0].segments] == [("u1",), ("u2",), ("u3",)]


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        ("links.0.codec", "zip", "link a>b: codec is 'zip'; allowed are dense, fp16, bf16, int8, int4, int8-h"),
        ("links.0.ratio", 0.5, r"link a>b: ratio must be at least 1 and share at most 1 \(got 0.5, 0.25\)"),
        ("links.0.ratio", -1, "link a>b: ratio must be a number above 0"),
        ("links.0.ratio", "much", "links.0.ratio: must be a number"),
        ("links.0.ratio", None, "links.0.ratio: must be a number"),
        ("links.0.share", 1.5, "share at most 1 .got 100.0, 1.5"),
        ("links.0.share", 0, "link a>b: share must be a number above 0"),
        ("links.0.codec", "dense", "link a>b: ratio 100.0 needs a codec that leaves elements out, not dense"),
        ("links.0.codec", "int8", "link a>b: ratio 100.0 needs a codec that leaves elements out, not int8"),
        (
            "links.0.codec",
            "forward-mask",
            "gradients at the elements that b>a kept, so b>a needs codec top-k and ratio 10",
        ),
        ("links.0.target", "a", "link a>a: a link joins two different devices"),
        ("links.0.source", "a>b", "'a>b' is not a name"),
        ("links.0.rate", 1, "links.0.rate: unknown key; allowed are source, target, codec, ratio, share"),
        ("links", [{"source": "a"}], "links.0.target: this key is required"),
        ("links", [{"source": "a", "target": "b"}] * 2, "plan: link 'a>b' is used twice"),
        ("links", "all", "links: must be a list"),
        ("gates.0.operations", "12", "plan: gate of encoder.layer.3#2 has 2 operations for 3 micro-batches"),
        ("gates.0.operations", "124", "gate of encoder.layer.3#2: '124'; give a digit 1, 2 or 3"),
        ("gates.0.operations", "", "gate of encoder.layer.3#2: ''; give a digit"),
        ("gates.0.operations", 123, "gates.0.operations: must be text"),
        ("gates", [{"subnet": "x", "operations": "111"}] * 2, "plan: gate of subnet 'x' is used twice"),
        ("collector", "the server", "plan: collector: 'the server' is not a name"),
        ("collector", None, "collector: must be text"),
        ("lanes.0.segments.0.trains", ["u9"], "segment u0: it trains unit 'u9', which it does not run"),
        ("lanes.0.segments.0.trains", ["u1", "u1"], "segment u0: trained unit 'u1' is used twice"),
        ("lanes.0.segments.0.trains", None, "trains: must be a list"),
        ("lanes.0.segments.0.units", [], "segment: it needs at least one unit and one device"),
        (
            "lanes.0.segments.1.shares.0.device",
            "a",
            "lane main: device 'a' is used twice, in segments 0 and 1; a device may come back later",
        ),
        ("lanes", [], "plan: it needs at least one lane"),
        ("order", [{"device": "a", "actions": ["main/0X0"]}], "action 'main/0X0': write LANE/SEGMENT LETTER"),
        ("minibatches", 3, "minibatches: unknown key; allowed are strategy, micro_batch_samples, .*links, gates"),
    ],
)
def test_what_cannot_be_is_refused_by_name(path: str, value: Any, words: str) -> None:
    """Each invalid field is refused with its own sentence."""
    with pytest.raises(Refused, match=words):
        json_io.parse(Plan, changed(path, value), "plan.json")


@pytest.mark.parametrize("spelling", ["main/0F0", "client-1/12B30", "x.y_z/2R0", "a/0U0"])
def test_actions_print_and_parse_back(spelling: str) -> None:
    """Spellings of actions survive parsing and printing."""
    assert str(parse_action(spelling)) == spelling


def test_an_update_is_an_action() -> None:
    """Updates are spelled as U of micro-batch 0."""
    assert parse_action("a/3U0") == Action(lane="a", segment=3, letter="U", micro_batch=0)


@pytest.mark.parametrize("spelling", ["", "main0F0", "main/F0", "main/0X0", "main/0F", "main/0F0 ", "/0F0", "a/-1F0"])
def test_what_is_no_action_is_refused_with_an_example(spelling: str) -> None:
    """Malformed actions are refused with an example and the letters."""
    with pytest.raises(Refused, match=r"write LANE/SEGMENT LETTER MICRO-BATCH such as main/2F0, letters F, B, R, U"):
        parse_action(spelling)


def test_a_mask_comes_from_the_opposite_forward() -> None:
    """Gradients at the forward's kept elements need top-k at the same ratio there; forwards over such a link, which has
    none to reuse, are top-k."""
    back = LinkUse(source="b", target="a", codec="forward-mask", ratio=100.0)
    plan = replace(FULL, links=(*FULL.links, back))
    assert [use.codec_of("F") for use in plan.links] == ["top-k", "top-k"]
    assert [use.codec_of("B") for use in plan.links] == ["top-k", "forward-mask"]
    with pytest.raises(Refused, match="link b>a sends gradients at the elements that a>b kept, so a>b needs"):
        replace(FULL, links=(*FULL.links, replace(back, ratio=99.0)))


def rested(**rounds: int) -> Plan:
    """Return a plan of lanes that are averaged every 4 rounds, with their steps until then."""
    base = json_io.parse(Plan, OLD, "plan")
    lanes = tuple(replace(base.lanes[0], name=name, rounds=steps) for name, steps in rounds.items())
    return replace(base, lanes=lanes, average_every_rounds=4)


def test_lanes_rest_after_their_steps_until_the_next_average() -> None:
    """a takes a step in every round, b in one and c in three of four; the rounds in which b has rested are counted."""
    plan = rested(a=0, b=1, c=3)
    assert [plan.resting_in(round) for round in range(6)] == [(), ("b",), ("b",), ("b", "c"), (), ("b",)]
    assert json_io.parse(Plan, json_io.text(plan), "plan") == plan


@pytest.mark.parametrize(
    ("rounds", "words"),
    [
        ({"a": 0, "b": 5}, "lane b takes a step in 5 rounds after each average, and averages are 4 rounds apart"),
        ({"a": 3, "b": 1}, "no lane takes a step in all 4 rounds between averages; lower .* to the 3 of the busiest"),
        ({"a": 0, "b": -1}, "rounds must be a number of at least 0"),
    ],
)
def test_lanes_that_rest_for_ever_are_refused(rounds: dict[str, int], words: str) -> None:
    """At least one lane takes part in every round, and none in more than there are."""
    with pytest.raises(Refused, match=words):
        rested(**rounds)
    with pytest.raises(Refused, match="averages are 0 rounds apart"):
        replace(rested(a=0, b=1), average_every_rounds=0)
