"""What a group's members receive to sum gradients counts in their memory: plans by hand."""

from dataclasses import replace

import pytest

from fleetune.clock import Clock
from fleetune.clock.costs import received_bytes
from fleetune.contracts.plan import Plan, Segment, Share
from tests.support.clock import ticks
from tests.support.clock.ticks import segment

NAMES = "a b c d s"
UNITS = [
    replace(ticks.unit("u0", trained=100), activation_bytes=1),
    replace(ticks.unit("u1", trained=20), param_bytes=1000, activation_bytes=10),
    replace(ticks.unit("u2", trained=400), activation_bytes=100),
]
"""Weights of 100, 1000 and 400 bytes, of which 100, 20 and 400 are trained."""
MADE = ticks.profile(UNITS, {name: ([1, 1, 1], [1, 1, 1]) for name in NAMES.split()})
PROFILE = replace(MADE, times=tuple(replace(times, runtime_bytes=5) for times in MADE.times))


def needed(plan: Plan, device: str) -> int:
    """Peak bytes of a device by the clock."""
    return Clock(ticks.fleet(NAMES), PROFILE).memory_bytes(plan, device)


def alone(units: str) -> Segment:
    """A segment on c with both samples of a micro-batch."""
    return replace(segment(units, "c"), shares=(Share(device="c", samples=2),))


def plan_of(*segments: Segment) -> Plan:
    """One lane of these segments."""
    return ticks.plan({"main": list(segments)})


def test_two_devices_that_share_units_need_their_gradients_bytes_once_more() -> None:
    """a and b share u0 and u1 and receive 120 bytes, of which each alone would need nothing; c alone receives none."""
    plan = plan_of(segment("u0 u1", "a b"), alone("u2"))
    of_two = 5 + 1100 + 3 * 120 + 11
    assert needed(plan, "a") == needed(plan, "b") == of_two + 120
    assert needed(plan, "c") == 5 + 400 + 3 * 400 + 2 * 100
    assert needed(plan_of(segment("u0 u1", "a"), segment("u2", "c")), "a") == of_two


def test_a_large_group_receives_as_much_as_a_small_one() -> None:
    """Of four devices three messages of a quarter wait while a fourth is joined."""
    assert {needed(plan_of(segment("u2", "a b c d")), name) for name in "abcd"} == {5 + 400 + 1600 + 100}
    assert [received_bytes(400, members) for members in (1, 2, 3, 100)] == [0, 400, 400, 400]
    assert received_bytes(0, 4) == 0


@pytest.mark.parametrize(("trains", "received"), [("u1", 20), ("u0", 100), ("u0 u2", 500)])
def test_only_what_is_trained_is_received(trains: str, received: int) -> None:
    """Adapters receive adapters' bytes, whatever lies frozen beside them."""
    group, one = plan_of(segment("u0 u1 u2", "a b", trains=trains)), plan_of(segment("u0 u1 u2", "a", trains=trains))
    assert needed(group, "a") - needed(one, "a") == received


def test_a_group_whose_units_are_frozen_receives_nothing() -> None:
    """Two devices that only run u0 forward hold its weights."""
    frozen = replace(PROFILE, units=(replace(UNITS[0], trainable_bytes=0), *UNITS[1:]))
    plan = plan_of(segment("u0", "a b"), alone("u1 u2"))
    assert Clock(ticks.fleet(NAMES), frozen).memory_bytes(plan, "a") == 5 + 100 + 1


def test_with_a_collector_members_of_a_group_receive_nothing() -> None:
    """Members send their gradients to the collector, which counts its own sums and what both have sent, and run no
    ring."""
    plan = replace(plan_of(segment("u0 u1 u2", "a b")), collector="s")
    assert needed(plan, "a") == needed(plan, "b") == 5 + 1500 + 520 + 111
    assert needed(plan, "s") == 5 + 520 * (2 + 2) + 2 * 520


def test_messages_are_gone_when_an_average_is_exchanged() -> None:
    """What a round needs at its peak and what an average needs do not add up."""
    lanes = {name: [segment("u0 u1 u2", devices)] for name, devices in {"x": "a b", "y": "c d"}.items()}
    plan = replace(ticks.plan(lanes), average_every_rounds=2)
    in_round, lasting = 520 + 111 + 520, 5 + 1500 + 2 * 520
    assert needed(plan, "b") == lasting + max(in_round, 2 * 520 * 3)
