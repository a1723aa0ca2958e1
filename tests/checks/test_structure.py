"""Faults of plans with several lanes, recurring devices, trained units, gates, compressed links and a collector."""

from dataclasses import replace

import pytest

from fleetune.checks import findings, validate
from fleetune.contracts.fleet import Fleet
from fleetune.contracts.plan import Backup, Gate, LinkUse, Plan
from fleetune.contracts.profile import Profile
from fleetune.contracts.subnet import Subnet, SubnetPart
from fleetune.errors import Infeasible, Refused
from tests.support.checks.plans import CLIENTS, NAMES, OWN, PROFILE, SPLIT, TUNED, UNITS
from tests.support.clock import fleets, ticks
from tests.support.clock.ticks import segment

FLEET = ticks.fleet(NAMES)


def told(plan: Plan, fleet: Fleet = FLEET, profile: Profile = PROFILE) -> str:
    """All findings as one text."""
    return "\n".join(findings(plan, fleet, profile))


def ordered(**orders: str) -> Plan:
    """SPLIT with some orders replaced; an empty one is removed."""
    given = {**OWN, "h": "x/1F0 y/1F0 x/1B0 y/1B0", **orders}
    return ticks.plan(CLIENTS, orders={name: order for name, order in given.items() if order})


def with_budget(device: str, memory_bytes: int) -> Fleet:
    """The fleet with another memory budget for one device."""
    devices = tuple(replace(d, memory_bytes=memory_bytes if d.name == device else 10**9) for d in FLEET.devices)
    return replace(FLEET, devices=devices)


@pytest.mark.parametrize("plan", [SPLIT, TUNED, replace(SPLIT, collector="s"), replace(TUNED, collector="x", links=())])
def test_sound_plans_have_no_findings(plan: Plan) -> None:
    """Split learning, and blocks with a separate server or a server among the devices, have no findings."""
    assert findings(plan, FLEET, PROFILE) == ()
    validate(plan, FLEET, PROFILE)


@pytest.mark.parametrize(
    ("plan", "words"),
    [
        (
            replace(SPLIT, links=(LinkUse(source="x", target="s", share=0.5),)),
            "link x>s: s has no part in the plan; its devices are x, h, y",
        ),
        (replace(SPLIT, collector="z"), "device z is not in the fleet; it has x, y, h, s"),
        (
            replace(SPLIT, links=(LinkUse(source="x", target="y", codec="top-k", ratio=10.0),)),
            "link x>y has a codec or share, but nothing crosses it; leave it out, or correct its ends",
        ),
        (
            replace(SPLIT, gates=(Gate(subnet="head#0", operations="1"), Gate(subnet="head#1", operations="1"))),
            "it has gates of 2 subnets (head#0, head#1), but the profile has none; profile with scores "
            "(profile.scores=true)",
        ),
        (
            replace(TUNED, links=(replace(TUNED.links[0], share=0.76), TUNED.links[1])),
            "links into s have shares of 1.01 together; a medium has 1 to give",
        ),
        (
            replace(TUNED, links=tuple(LinkUse(source="s", target=name, share=0.6) for name in "xy")),
            "links out of s have shares of 1.2 together; a medium has 1 to give",
        ),
    ],
)
def test_links_gates_and_collectors_must_belong_to_the_plan(plan: Plan, words: str) -> None:
    """Unknown and unused links, overcommitted shares, and unknown gates and collectors are named."""
    assert told(plan) == words


def test_neutral_link_uses_are_no_fault() -> None:
    """Neutral values are ignored wherever they stand."""
    assert told(replace(SPLIT, links=(LinkUse(source="x", target="y"),))) == ""


def test_three_thirds_of_a_medium_fit() -> None:
    """Rounding errors of shares are tolerated."""
    lanes = {name: [segment("u0 u1 u2", name)] for name in "xyh"}
    thirds = tuple(LinkUse(source=name, target="s", share=1 / 3 + 1e-9) for name in "xyh")
    assert told(replace(ticks.plan(lanes), links=thirds, collector="s")) == ""


def test_an_unknown_subnet_is_named_with_the_known_ones() -> None:
    """Gates of another profile are named together with the known subnets."""
    known = Subnet(
        name="head#0",
        parts=(SubnetPart(unit="u0", share=0.5),),
        weight_magnitude=1.0,
        gradient_magnitude=1.0,
        fisher=(1.0,),
    )
    plan = replace(SPLIT, gates=tuple(Gate(subnet=f"head#{k}", operations="1") for k in range(8)))
    assert told(plan, profile=replace(PROFILE, subnets=(known,))) == (
        "it has gates of head#1, head#2, head#3, head#4, head#5 ..., which the profile does not have; it has head#0"
    )


def test_each_lane_must_run_every_unit() -> None:
    """Lanes that omit or reorder units are named."""
    lanes = {**CLIENTS, "x": [segment("u0", "x"), segment("u2", "h")], "y": [segment("u0 u2 u1", "y")]}
    assert told(ticks.plan(lanes)) == (
        "lane x leaves out 1 of the model's units (u1); every unit must run\n"
        "lane y runs unit u2 where the model has u1; segments must be contiguous and in the model's order"
    )


def test_a_segment_without_trainable_parameters_cannot_be_trained() -> None:
    """A segment that trains only the frozen u1 is named."""
    frozen = replace(PROFILE, units=(UNITS[0], ticks.unit("u1"), UNITS[2]))
    lanes = {"a": [segment("u0 u1 u2", "x", trains="u1")], "b": [segment("u0 u1 u2", "y", trains="u0 u1")]}
    assert told(ticks.plan(lanes), profile=frozen) == (
        "segment a/0 is to train u1, which have no trainable parameters; name units that do, or leave it out to train "
        "all"
    )


def test_gradients_must_reach_every_trained_segment() -> None:
    """A segment whose backward ends early cuts off the gradients of a trained segment below, but not of a frozen
    one."""
    lanes = {"main": [segment("u0", "x"), segment("u1 u2", "y", trains="u2")]}
    assert told(ticks.plan(lanes)) == (
        "segment main/1 ends its backward at unit u2, so no gradient reaches segment main/0, which is to train; train "
        "u1 too, or nothing below"
    )
    assert told(ticks.plan(lanes), profile=replace(PROFILE, units=(ticks.unit("u0"), *UNITS[1:]))) == ""
    lanes["main"][1] = segment("u1 u2", "y", trains="u2 u1")
    assert told(ticks.plan(lanes)) == ""


# Memory: a client's u0 and u2 need 100·4 + 10 and 400·4 + 10, the helper's two copies of u1 2·(200·4 + 10)

SPLIT_LESS = "give it fewer segments, units or samples, or an order with fewer forwards ahead"


@pytest.mark.parametrize(
    ("plan", "device", "needed", "words"),
    [
        (SPLIT, "x", 1810 + 210, f"for segments x/0, x/2: it needs 2020 bytes; {SPLIT_LESS}"),
        (SPLIT, "h", 1620, f"for segments x/1, y/1: it needs 1620 bytes; {SPLIT_LESS}"),
        (
            TUNED,
            "s",
            600 * 4 + 600,
            "for the parameters and optimizer state that it collects: it needs 3000 bytes; let a device with more "
            "memory collect, or train fewer units",
        ),
        (
            replace(TUNED, collector="x", links=()),
            "x",
            700 + 400 + 10 + 600 * 4 + 200,
            "for segment b0/0 (u0 .. u2, 1 samples, 1 micro-batches kept) and the parameters and optimizer state that "
            "it collects: it needs 3710 bytes; give it fewer units or samples, or a lower warm-up, or let another "
            "device collect",
        ),
    ],
)
def test_memory_over_several_segments_is_counted_to_the_byte(plan: Plan, device: str, needed: int, words: str) -> None:
    """The finding names the missing bytes and the segments; a peak equal to the budget fits."""
    assert told(plan, with_budget(device, needed)) == ""
    assert told(plan, with_budget(device, needed - 1)) == f"device {device} lacks 1 byte {words}"
    with pytest.raises(Infeasible, match=f"device {device} lacks 1 byte"):
        validate(plan, with_budget(device, needed - 1), PROFILE)


def test_an_order_that_keeps_more_than_its_warm_up_needs_the_memory() -> None:
    """An order with three forwards first keeps three micro-batches of activations, although the warm-up is 1."""
    order = "main/0F0 main/0F1 main/0F2 main/0B0 main/0B1 main/0B2"
    plan = ticks.plan({"main": [segment("u0 u1 u2", "x")]}, micro_batches=3, orders={"x": order})
    assert told(plan, with_budget("x", 2800 + 90)) == ""
    assert told(plan, with_budget("x", 2800 + 30)) == (
        "device x lacks 60 bytes for segment main/0 (u0 .. u2, 1 samples, 3 micro-batches kept): it needs 2890 bytes; "
        "give it fewer units or samples, or an order with fewer forwards ahead"
    )


# Orders


@pytest.mark.parametrize(
    ("plan", "words"),
    [
        (ordered(h="x/1F0 x/1B0 y/1F0"), "the order of h misses y/1B0"),
        (ordered(x="x/0F0 x/0B0"), "the order of x misses x/2F0, x/2B0"),
        (ordered(h="x/1F0 y/1F0 x/1B0 y/1B0 x/0F0"), "the order of h has x/0F0, which is not of its segments x/1, y/1"),
        (ordered(x=OWN["x"] + " z/0F0"), "the order of x has z/0F0, which is not of its segments x/0, x/2"),
        (ordered(x=OWN["x"] + " x/0U0"), "the order of x has x/0U0, which is not of its segments x/0, x/2"),
        (ordered(h="y/1F0 x/1F0 x/1B0 y/1B0 x/1B0"), "the order of h has x/1B0 2 times; every action is done once"),
        (ordered(h="y/1F0 x/1B0 x/1F0 y/1B0"), "the order of h has x/1B0 before its forward"),
        (ordered(x="x/0F0 x/2F0 x/0R0 x/2B0 x/0B0"), "the order of x has x/0R0 before its last backward"),
    ],
)
def test_orders_over_several_segments_must_be_complete(plan: Plan, words: str) -> None:
    """An order must contain every forward and backward of all the device's segments once."""
    assert words in told(plan)


def test_an_all_reduce_may_follow_its_own_segments_last_backward() -> None:
    """An all-reduce may stand before the end of the whole order."""
    assert told(ordered(x="x/0F0 x/2F0 x/2B0 x/2R0 x/0B0 x/0R0")) == ""


def test_a_collector_without_units_has_no_order() -> None:
    """An order for a collector without units is a fault."""
    plan = replace(TUNED, order=ordered(h="b0/0F0").order[-1:])
    plan = replace(plan, order=(replace(plan.order[0], device="s"),))
    assert told(plan) == "device s has an order but no segment"


def test_a_recurring_device_without_an_order_is_drawn_with_a_hint() -> None:
    """Without an order a recurring device runs segment after segment, which deadlocks; the finding says so."""
    assert told(ordered(x="", y="")) == (
        "its order deadlocks, x, h, y wait for ever (x, y: several segments of a lane need an explicit order):\n"
        "  x  x/0F0 x/0B0 <-- waits x/2F0 x/2B0\n"
        "  h  x/1F0 y/1F0 x/1B0 <-- waits y/1B0\n"
        "  y  y/0F0 y/0B0 <-- waits y/2F0 y/2B0"
    )


def test_a_deadlock_over_lanes_is_drawn() -> None:
    """The helper wants x's gradient before it has run y; x wants its own too early: the drawing shows both."""
    assert told(ordered(x="x/0F0 x/0B0 x/2F0 x/2B0", h="x/1F0 x/1B0 y/1F0 y/1B0")) == (
        "its order deadlocks, x, h, y wait for ever:\n"
        "  x  x/0F0 x/0B0 <-- waits x/2F0 x/2B0\n"
        "  h  x/1F0 x/1B0 <-- waits y/1F0 y/1B0\n"
        "  y  y/0F0 y/2F0 <-- waits y/2B0 y/0B0"
    )


@pytest.mark.parametrize(
    ("plan", "lane", "number", "holder", "words"),
    [
        (SPLIT, "nope", 0, "h", "a backup of nope/0, which is no part of it; its segments are x/0, x/1, x/2, y/0, y/1"),
        (SPLIT, "x", 7, "h", "a backup of x/7, which is no part of it"),
        (SPLIT, "", 0, "h", "a backup of the collector, which is no part of it"),
        (SPLIT, "x", 0, "s", "the backup of x/0 is on s, which has no part in the plan; let one of x, h, y hold it"),
        (SPLIT, "x", 0, "x", "the backup of x/0 is on x, which alone trains it"),
        (TUNED, "", 0, "s", "the backup of the collector is on s, which alone trains it"),
        (SPLIT, "x", 0, "h", ""),
        (TUNED, "", 0, "y", ""),
        (fleets.plan(("u0 u1 u2", {"x": 1, "y": 1}, 1)), "main", 0, "y", ""),
    ],
)
def test_a_backup_is_of_a_part_of_the_plan_and_outlives_its_owner(
    plan: Plan, lane: str, number: int, holder: str, words: str
) -> None:
    """A backup names a segment or collector that is there, and another device of the plan; the group of a segment may
    hold its own. Memory is not counted for what is not there."""
    kept = replace(plan, backups=(Backup(lane=lane, segment=number, holder=holder),), backup_every_rounds=1)
    said = told(kept)
    assert words in said and bool(words) == bool(said)
    if words:
        with pytest.raises(Refused, match="backup of"):
            validate(kept, FLEET, PROFILE)


@pytest.mark.parametrize(
    ("first", "last", "words"),
    [
        ("u1", "u2", ""),
        ("", "u2 u3", ""),
        ("u1", "u2 u3", "segment main/1 trains w, which segment main/0 reads and does not train; let both train"),
        ("u0 u1", "u2", "segment main/0 trains w, which segment main/1 reads and does not train"),
    ],
)
def test_a_weight_is_trained_by_all_segments_that_hold_it_or_by_none(first: str, last: str, words: str) -> None:
    """Bug: u0 and u3 read the same weight; where only one was trained, its worker met a gradient that it has no
    parameter for, or a collector stepped by half of the gradient."""
    units = [ticks.unit(f"u{k}", trained=100) for k in range(4)]
    tied = replace(units[0], tied=("w",)), units[1], units[2], replace(units[3], tied=("w",))
    times = {name: ([1] * 4, [1] * 4) for name in "xy"}
    profile = replace(ticks.profile(list(tied), times), tied_bytes={"w": 50})
    made = ticks.plan({"main": [segment("u0 u1", "x", trains=first), segment("u2 u3", "y", trains=last)]})
    found = [line for line in findings(made, FLEET, profile) if "reads and does not train" in line]
    assert len(found) == bool(words) and all(line.startswith(words) for line in found)


def test_lanes_that_are_averaged_train_the_same_units() -> None:
    """Bug: of lanes that train different units checkpoints held the first one's only, so that the others' training was
    lost with the last average. A collector holds all of them."""
    lanes = {"b0": [segment("u0 u1 u2", "x", trains="u2")], "b1": [segment("u0 u1 u2", "y", trains="u1 u2")]}
    made = ticks.plan(lanes)
    said = told(replace(made, average_every_rounds=2))
    assert said.startswith("lane b1 and lane b0 do not train the same units (u1), and their parameters are averaged")
    assert told(replace(made, collector="s")) == told(replace(SPLIT, average_every_rounds=2)) == ""


def test_an_averager_without_a_part_is_named() -> None:
    """Bug: it was ignored, and the device that trains most units averaged, which may have neither memory nor links for
    it."""
    averaged = replace(SPLIT, average_every_rounds=2)
    said = told(replace(averaged, averager="s"))
    assert said.startswith("its averager s has no part in it; name one of x, h, y")
    assert told(replace(averaged, averager="y")) == ""


def test_later_checks_are_skipped_after_unknown_names() -> None:
    """A plan with an unknown subnet is not checked for orders and memory."""
    plan = replace(ordered(x=""), gates=(Gate(subnet="head#0", operations="1"),))
    assert len(findings(plan, with_budget("x", 1), PROFILE)) == 1
    with pytest.raises(Refused, match="plan: it has gates of 1 subnets"):
        validate(plan, FLEET, PROFILE)


def test_findings_of_a_chain_name_its_segment() -> None:
    """A device that lacks memory in one segment is reported like before several segments were possible."""
    fleet = fleets.fleet(fleets.device("a", 10449), fleets.device("b"), fleets.device("c"))
    assert told(fleets.PLAN, fleet, fleets.PROFILE) == (
        "device a lacks 1 byte for segment main/0 (u0 .. u1, 4 samples, 3 micro-batches kept): it needs 10450 bytes; "
        "give it fewer units or samples, or a lower warm-up"
    )
