"""What of the plan language training runs: chains of segments, however they are spelled."""

from dataclasses import replace

import pytest

from fleetune.contracts.plan import Gate, Lane, LinkUse, Plan
from fleetune.errors import Refused
from fleetune.training.able import prove_able
from tests.clock import fleets, ticks
from tests.clock.ticks import segment

LANE = fleets.PLAN.lanes[0]


def with_segments(*trains: str) -> Plan:
    """The usual plan, its first segments training these units."""
    named = tuple(replace(s, trains=tuple(names.split())) for s, names in zip(LANE.segments, trains, strict=True))
    return replace(fleets.PLAN, lanes=(replace(LANE, segments=named),))


@pytest.mark.parametrize(
    "plan",
    [
        fleets.PLAN,
        replace(fleets.PLAN, links=(LinkUse(source="a", target="b"),)),
        replace(fleets.PLAN, gates=(Gate(subnet="head#0", operations="111"),)),
        with_segments("u0 u1", "u3 u2"),
    ],
)
def test_a_chain_is_trained_and_neutral_values_do_not_matter(plan: Plan) -> None:
    """Links as they are, gates that are always full, all units trained."""
    prove_able(plan)


@pytest.mark.parametrize(
    ("plan", "words"),
    [
        (replace(fleets.PLAN, lanes=(LANE, Lane(name="more", segments=LANE.segments))), "with 2 lanes;"),
        (
            ticks.plan({"x": [segment("u0", "x"), segment("u1", "h"), segment("u2", "x")]}),
            "with devices in several segments;",
        ),
        (with_segments("u1", ""), "with segments that train a part of their units;"),
        (replace(fleets.PLAN, links=(LinkUse(source="a", target="b", share=0.5),)), "with thin or shared links;"),
        (
            replace(fleets.PLAN, links=(LinkUse(source="a", target="b", codec="top-k", ratio=9.0),)),
            "with thin or shared links;",
        ),
        (replace(fleets.PLAN, gates=(Gate(subnet="head#0", operations="112"),)), "with gates;"),
        (replace(fleets.PLAN, collector="c"), r"with a collector \(c\);"),
        (
            replace(fleets.PLAN, collector="s", gates=(Gate(subnet="head#0", operations="333"),)),
            r"strategy by hand made it with gates, a collector \(s\); training runs one lane of segments",
        ),
    ],
)
def test_what_training_cannot_run_yet_is_refused_before_it_starts(plan: Plan, words: str) -> None:
    """All that the plan has beyond a chain is named, and what to do."""
    with pytest.raises(Refused, match=words) as refused:
        prove_able(plan)
    assert str(refused.value).endswith("look at this plan with --until plan, or train with another strategy")
