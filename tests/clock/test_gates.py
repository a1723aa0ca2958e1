"""Gates: what they leave of a unit's work in every micro-batch, and of a round's time."""

from dataclasses import replace

import pytest

from fleetune.clock import forecast
from fleetune.clock.costs import remaining_shares
from fleetune.contracts.plan import Gate, Plan
from fleetune.contracts.profile import Profile, Subnet, SubnetPart
from fleetune.errors import Refused
from tests.clock import ticks
from tests.clock.ticks import picture, segment

FLEET = ticks.fleet("a b")


def subnet(name: str, **shares: float) -> Subnet:
    """Parts of units by name."""
    parts = tuple(SubnetPart(unit=unit, share=share) for unit, share in shares.items())
    return Subnet(name=name, parts=parts, weight_magnitude=1.0, gradient_magnitude=1.0, fisher=(1.0,))


def profile(*subnets: Subnet) -> Profile:
    """Two units of 10 and 4 ticks forward, 20 and 8 backward."""
    times = {name: ([10, 4], [20, 8]) for name in "ab"}
    return replace(ticks.profile([ticks.unit("u0", trained=2), ticks.unit("u1")], times), subnets=subnets)


HEADS = profile(subnet("head#0", u0=0.4, u1=0.5), subnet("head#1", u0=0.4, u1=0.5))
"""Two heads; a fifth of u0 belongs to none."""


def gated(micro_batches: int, **gates: str) -> Plan:
    """On a alone; gates by the number of the head."""
    plan = ticks.plan({"main": [segment("u0 u1", "a")]}, micro_batches=micro_batches)
    made = tuple(Gate(subnet=name.replace("head", "head#"), operations=given) for name, given in gates.items())
    return replace(plan, gates=made)


def lengths(plan: Plan) -> dict[str, int]:
    """Ticks of every action."""
    rows = forecast(plan, FLEET, HEADS).rows
    return {row.action.removeprefix("main/0"): ticks.ticks(row.end_s - row.start_s) for row in rows}


def test_full_forward_only_and_skip_of_a_head() -> None:
    """One head of 0.4·10 + 0.5·4 = 6 of 14 ticks forward and 12 of 28 backward: all, no backward, nothing."""
    assert lengths(gated(3, head0="123")) == {"F0": 14, "B0": 28, "F1": 14, "B1": 16, "F2": 8, "B2": 16}


def test_heads_add() -> None:
    """Both are skipped: the fifth of u0 that belongs to no head still runs; one skipped, one forward-only: 8 and 4."""
    assert lengths(gated(2, head0="33", head1="32")) == {"F0": 2, "B0": 4, "F1": 8, "B1": 4}


def test_gates_that_are_all_full_change_nothing() -> None:
    """Rows, round, memory and bytes are those of the plan without them, told compiled."""
    plan = gated(3)
    assert forecast(gated(3, head0="111", head1="111"), FLEET, HEADS) == forecast(plan, FLEET, HEADS)


def test_units_without_a_subnet_always_run() -> None:
    """Only what gates touch is listed, and what they leave lies between nothing and all."""
    left = remaining_shares((Gate(subnet="one", operations="23"),), profile(subnet("one", u0=1.0)))
    assert left == {"u0": ((1.0, 0.0), (0.0, 0.0))}
    thirds = profile(*(subnet(f"head#{k}", u0=1 / 3, u1=0.1) for k in range(3)))
    left = remaining_shares(tuple(Gate(subnet=s.name, operations="3") for s in thirds.subnets), thirds)
    assert left["u0"] == ((0.0, 0.0),)
    assert left["u1"][0] == pytest.approx((0.7, 0.7))


def test_gates_and_trains_meet() -> None:
    """A segment that trains u1 alone differentiates none of u0; the gate takes half of the 8 ticks of u1."""
    plan = gated(1, head0="2")
    lane = replace(plan.lanes[0], segments=(segment("u0 u1", "a", trains="u1"),))
    assert lengths(replace(plan, lanes=(lane,))) == {"F0": 14, "B0": 4}


def test_gates_do_not_change_what_crosses_cuts() -> None:
    """The residual stream passes a skipped head as it is: a byte each way in every micro-batch."""
    plan = ticks.plan({"main": [segment("u0", "a"), segment("u1", "b")]}, micro_batches=2)
    plan = replace(plan, gates=(Gate(subnet="head#0", operations="13"),))
    assert [row.bytes for row in forecast(plan, FLEET, HEADS).rows if row.is_transfer] == [1] * 4


def test_a_pipeline_with_gates_as_drawn_by_hand() -> None:
    """u0 of 2 ticks each way on a, u1 of 2 on b; in micro-batch 1 half of each is skipped, in 2 not differentiated."""
    halves = replace(
        ticks.profile([ticks.unit("u0"), ticks.unit("u1")], {name: ([2, 2], [2, 2]) for name in "ab"}),
        subnets=(subnet("half", u0=0.5, u1=0.5),),
    )
    plan = ticks.plan({"main": [segment("u0", "a", warmup=3), segment("u1", "b")]}, micro_batches=3)
    plan = replace(plan, gates=(Gate(subnet="half", operations="132"),))
    assert picture(plan, FLEET, halves) == ticks.drawn("""
  a 00122...aab..c
  b ...00aa1b22c..
a>b ..01.2........
b>a .......a.b..c.
""")


def test_a_subnet_that_nobody_scored_is_refused() -> None:
    """The clock does not guess."""
    with pytest.raises(Refused, match="gate of head#7: the profile has no such subnet"):
        forecast(gated(1, head7="1"), FLEET, HEADS)
