"""Every fault of a chain plan is reported; a sound plan has none."""

from dataclasses import replace

import pytest

from fleetune.checks import findings, validate
from fleetune.contracts.fleet import Fleet
from fleetune.contracts.plan import DeviceOrder, Lane, Plan
from fleetune.contracts.profile import Profile
from fleetune.errors import Infeasible, Refused
from tests.support.clock import fleets

F3 = ("main/0F0", "main/0F1", "main/0F2")
B3 = ("main/0B0", "main/0B1", "main/0B2")


def told(plan: Plan, fleet: Fleet = fleets.FLEET, profile: Profile = fleets.PROFILE) -> str:
    """All findings as one text."""
    return "\n".join(findings(plan, fleet, profile))


def with_order(device: str, *actions: str) -> Plan:
    """The default plan with an explicit order of one device."""
    return replace(fleets.PLAN, order=(DeviceOrder(device=device, actions=actions),))


def test_a_sound_plan_has_no_findings() -> None:
    """The plan that other tests use has no findings and passes `validate`."""
    assert findings(fleets.PLAN, fleets.FLEET, fleets.PROFILE) == ()
    validate(fleets.PLAN, fleets.FLEET, fleets.PROFILE)


@pytest.mark.parametrize(
    ("plan", "words"),
    [
        (fleets.plan(("u0 u1 u2 u3", {"z": 4}, 1)), "device z is not in the fleet; it has a, b, c"),
        (fleets.plan(("u0 u1 u2 u9", {"a": 4}, 1)), "segment main/0 has unit u9, which the model does not have"),
        (fleets.plan(("u0 u1", {"a": 4}, 1), ("u3", {"b": 4}, 1)), "leaves out 1 of the model's units (u2)"),
        (fleets.plan(("u0 u2", {"a": 4}, 1), ("u1 u3", {"b": 4}, 1)), "runs unit u2 where the model has u1"),
        (fleets.plan(("u2 u3", {"a": 4}, 1), ("u0 u1", {"b": 4}, 1)), "runs unit u2 where the model has u0"),
    ],
)
def test_units_and_devices_must_be_those_of_the_model_and_the_fleet(plan: Plan, words: str) -> None:
    """Unknown, missing, split and misordered units and unknown devices are named."""
    assert words in told(plan)
    with pytest.raises(Refused):
        validate(plan, fleets.FLEET, fleets.PROFILE)


def test_a_device_without_a_profile_is_named() -> None:
    """A device without measured times is named."""
    profile = fleets.profile(fleets.UNITS, {"a": 0.001, "b": 0.002})
    assert "device c has no measured times" in told(fleets.PLAN, profile=profile)


def test_a_cut_where_none_may_be_is_named() -> None:
    """u1's output cannot be split by samples, so u2 must stay with it."""
    units = [fleets.unit(f"u{k}", cut_after=k != 1) for k in range(4)]
    said = told(fleets.PLAN, profile=fleets.profile(units, fleets.PACES))
    assert said == "segment main/0 ends after unit u1, where the model cannot be cut; the next unit must stay with it"


def test_lanes_share_devices() -> None:
    """Two lanes may use the same devices."""
    lane = fleets.PLAN.lanes[0]
    plan = replace(fleets.PLAN, lanes=tuple(Lane(name=name, segments=lane.segments) for name in ("left", "right")))
    assert told(plan) == ""


@pytest.mark.parametrize(("memory_bytes", "missing"), [(10450, ""), (10449, "1 byte"), (10000, "450 bytes")])
def test_memory_that_is_missing_is_counted_to_the_byte(memory_bytes: int, missing: str) -> None:
    """Segment 0 needs 10450 bytes on a: that budget fits, one byte less does not."""
    fleet = fleets.fleet(fleets.device("a", memory_bytes), fleets.device("b"), fleets.device("c"))
    said = told(fleets.PLAN, fleet)
    assert said.startswith(f"device a lacks {missing} for segment main/0 (u0 .. u1, 4 samples, 3" * bool(missing))
    assert bool(said) == bool(missing)
    if missing:
        with pytest.raises(Infeasible, match=f"a lacks {missing}"):
            validate(fleets.PLAN, fleet, fleets.PROFILE)


def test_much_missing_memory_is_shown_in_megabytes() -> None:
    """Large amounts are shown in MB and in bytes."""
    units = [fleets.unit(f"u{k}", param_bytes=39_000_000 if k < 2 else 1000) for k in range(4)]
    fleet = fleets.fleet(fleets.device("a", 2450), fleets.device("b"), fleets.device("c"))
    said = told(fleets.PLAN, fleet, fleets.profile(units, fleets.PACES))
    assert said.startswith("device a lacks 312 MB (312000000 bytes) for segment main/0")


@pytest.mark.parametrize(
    ("plan", "words"),
    [
        (with_order("a", *F3, *B3[:2]), "the order of a misses main/0B2"),
        (with_order("a", *F3, *B3, "main/0B2"), "the order of a has main/0B2 2 times"),
        (with_order("a", *F3, *B3, "main/1F0"), "has main/1F0, which is not of its segment main/0"),
        (with_order("a", *F3, *B3, "main/0F3"), "has main/0F3, which is not of its segment main/0 in this round"),
        (with_order("a", "main/0B0", *F3, *B3[1:]), "the order of a has main/0B0 before its forward"),
        (with_order("a", *F3[::-1], *B3), "the order of a has main/0F2 before that of micro-batch 1; forwards of a"),
        (with_order("a", *F3, "main/0R0", *B3), "the order of a has main/0R0 before its last backward"),
        (with_order("z", *F3, *B3), "device z has an order but no segment"),
        (replace(fleets.PLAN, order=with_order("a", *F3, *B3).order * 2), "device a has 2 orders"),
    ],
)
def test_orders_must_be_complete(plan: Plan, words: str) -> None:
    """An order must contain every forward and backward of the device once, in a possible sequence."""
    assert words in told(plan)


def test_an_order_that_deadlocks_is_drawn_with_the_blocking_actions_marked() -> None:
    """a wants its first gradient after one forward, b and c want two inputs before they send one: the drawing marks
    where each waits."""
    plan = fleets.plan(("u0 u1", {"a": 4}, 1), ("u2 u3", {"b": 3, "c": 1}, 2), micro_batches=2)
    assert told(plan) == (
        "its order deadlocks, a, b, c wait for ever:\n"
        "  a  main/0F0 main/0B0 <-- waits main/0F1 main/0B1\n"
        "  b  main/1F0 main/1F1 <-- waits main/1B0 main/1B1\n"
        "  c  main/1F0 main/1F1 <-- waits main/1B0 main/1B1"
    )
