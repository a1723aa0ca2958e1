"""Weights that several segments share: what the round waits for after its last backward, drawn by hand."""

from dataclasses import replace

import pytest

from fleetune.clock import Clock, forecast
from fleetune.contracts.plan import Plan, Share
from fleetune.contracts.profile import Profile
from tests.support.clock import ticks
from tests.support.clock.plans import with_neutral_link
from tests.support.clock.ticks import drawn, picture, segment

FLEET = ticks.fleet("a b c", latency=1)


def profile(*tied: str, size: int = 3) -> Profile:
    """Three units of one tick each way; `tied` are the units that read the weight w of so many bytes."""
    units = [replace(ticks.unit(f"u{k}", trained=size), tied=("w",) if f"u{k}" in tied else ()) for k in range(3)]
    made = ticks.profile(units, {name: ([1, 1, 1], [1, 1, 1]) for name in "abc"})
    return replace(made, tied_bytes={"w": size} if tied else {})


PIPELINE = ticks.plan({"main": [segment("u0", "a"), segment("u1", "b"), segment("u2", "c")]})


def test_each_end_sends_its_gradient_when_its_last_backward_is_done() -> None:
    """c has its gradient first, and sends it behind that of its inputs; the round ends when c has a's."""
    assert picture(PIPELINE, FLEET, profile("u0", "u2")) == drawn("""
  a 0............a....
  b ...0......a.......
  c ......0a..........
a>b .0................
a>c ..............RRR.
b>a ...........a......
b>c ....0.............
c>a .........RRR......
c>b ........a.........
""")
    assert Clock(FLEET, profile()).round_s(PIPELINE) == pytest.approx(14 * ticks.TICK_S)


def test_a_weight_within_one_segment_crosses_no_link() -> None:
    """Where all units that read it are on one device, or a collector sums, nothing is added to the round."""
    together = ticks.plan({"main": [segment("u0 u1 u2", "a")]})
    collected = replace(PIPELINE, collector="b")
    for plan in (together, collected):
        assert forecast(plan, FLEET, profile("u0", "u2")).rows == forecast(plan, FLEET, profile()).rows


def group(plan: Plan) -> Plan:
    """The plan with c and b in the last segment."""
    last = replace(plan.lanes[0].segments[1], shares=tuple(Share(device=name, samples=1) for name in "bc"))
    first = replace(plan.lanes[0].segments[0], shares=(Share(device="a", samples=2),))
    return replace(plan, micro_batch_samples=2, lanes=(replace(plan.lanes[0], segments=(first, last)),))


def test_a_group_sums_first_and_a_member_sends_the_sum() -> None:
    """a sends its gradient to both members of the group, one after the other; one of them sends the group's to a."""
    two = ticks.plan({"main": [segment("u0", "a"), segment("u1 u2", "b")]})
    told = forecast(group(two), FLEET, profile("u0", "u2")).rows
    rows = [row for row in told if row.is_transfer and "R" in row.action]
    assert sorted((row.device, row.action, row.bytes) for row in rows) == [
        ("a>b", "main/0R1", 3),
        ("a>c", "main/0R1", 3),
        ("b>a", "main/1R0", 3),
    ]
    sent = {row.device: row for row in rows}
    assert sent["a>c"].start_s == sent["a>b"].end_s
    ring = [row.end_s for row in told if row.action == "main/1R0" and row.device == "b"]
    assert sent["b>a"].start_s == max(ring)


def test_a_segment_counts_a_weight_once_that_several_of_its_units_read() -> None:
    """Two members sum u0's 3 bytes, u1's 3 and the 3 that u0 and u2 share; memory has its gradient and state once, and
    the gradient of u2 until that of u0 has come.
    """
    whole = ticks.plan({"main": [segment("u0 u1 u2", "a b")]})
    apart, tied = profile(), profile("u0", "u2")
    assert Clock(FLEET, apart).sums.summed_bytes(whole.lanes[0].segments[0]) == 9
    assert Clock(FLEET, tied).sums.summed_bytes(whole.lanes[0].segments[0]) == 6
    once = 3 * (1 + 1 + 2 + 1)  # weight, gradient, two moments, and the messages of the all-reduce
    assert Clock(FLEET, apart).memory_bytes(whole, "a") - Clock(FLEET, tied).memory_bytes(whole, "a") == once - 3
    collected = replace(ticks.plan({"main": [segment("u0 u1 u2", "a", trains="u0 u1 u2")]}), collector="c")
    sent = {row.device: row.bytes for row in forecast(collected, FLEET, tied).rows if row.is_transfer}
    assert sent == {"a>c": 6, "c>a": 6}


def test_both_simulations_charge_it_alike() -> None:
    """The compiled simulation of a chain and that of any plan add the same rows and the same seconds."""
    clock, woven = Clock(FLEET, profile("u0", "u2")), with_neutral_link(PIPELINE, FLEET)
    assert clock.forecast(PIPELINE) == clock.forecast(woven)
    assert clock.round_s(PIPELINE) == clock.round_s(woven) == clock.forecast(PIPELINE).round_s
