"""Plans that are not chains - lanes, recurring devices, collectors, compressed and shared links - checked by hand, and
chains against the compiled simulation."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings

from fleetune.clock import Clock, forecast
from fleetune.contracts.fleet import Fleet
from fleetune.contracts.plan import DeviceOrder, LinkUse, Plan, Share
from fleetune.contracts.profile import Profile
from fleetune.errors import Infeasible, Refused
from fleetune.planning import Problem, solve
from fleetune.program import program_of
from fleetune.program.execution import carry_out
from tests.support.clock import fleets, ticks
from tests.support.clock.plans import chains, with_neutral_link
from tests.support.clock.ticks import drawn, picture, segment
from tests.support.planning.instances import tiny

CLIENTS = {name: [segment("u0", name), segment("u1", "h"), segment("u2", name)] for name in "xy"}
OWN = {name: f"{name}/0F0 {name}/2F0 {name}/2B0 {name}/0B0" for name in "xy"}
"""Order of a client: its first part, its last one, and back."""
CLIENT_FLEET = ticks.fleet("x y h")
CLIENT_PROFILE = ticks.profile(
    [ticks.unit("u0"), ticks.unit("u1"), ticks.unit("u2")],
    {"x": ([1, 9, 1], [1, 9, 2]), "y": ([2, 9, 2], [1, 9, 1]), "h": ([9, 2, 9], [9, 3, 9])},
)


def assert_told_alike(plan: Plan, fleet: Fleet, profile: Profile) -> None:
    """Assert that the compiled and the plain-Python simulation agree on the time of a chain, or that both deadlock."""
    woven, clock = with_neutral_link(plan, fleet), Clock(fleet, profile)
    if deadlocked(plan, profile):
        for simulated in (plan, woven):
            with pytest.raises(Refused, match="deadlocks"):
                clock.round_s(simulated)
        return
    assert clock.forecast(plan) == clock.forecast(woven)
    assert clock.round_s(plan) == clock.round_s(woven) == clock.forecast(plan).round_s


def deadlocked(plan: Plan, profile: Profile) -> Mapping[str, int]:
    """How far devices come that wait for ever."""
    return carry_out(program_of(plan, profile)).deadlocked


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(chains())
def test_both_simulations_agree_on_chains(drawn_chain: tuple[Plan, Fleet, Profile]) -> None:
    """Both simulations agree on random chains with groups, latencies, orders, ties and deadlocks."""
    assert_told_alike(*drawn_chain)


@pytest.mark.parametrize("strategy", ["dp", "pp", "asteroid"])
@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(problem=tiny())
def test_both_simulations_agree_on_plans_of_strategies(strategy: str, problem: Problem) -> None:
    """Both simulations agree on plans of the strategies for uneven devices and links."""
    try:
        plan = solve(strategy, problem, now=lambda: 0.0).plan
    except Infeasible:
        return
    assert_told_alike(plan, problem.fleet, problem.profile)


def test_both_simulations_accept_an_explicit_all_reduce() -> None:
    """The all-reduce follows the last backward wherever an order names it."""
    spelled = ("main/1F0", "main/1B0", "main/1F1", "main/1B1", "main/1F2", "main/1B2", "main/1R0")
    plan = replace(fleets.PLAN, order=(DeviceOrder(device="b", actions=spelled),))
    assert_told_alike(plan, fleets.FLEET, fleets.PROFILE)


def test_two_clients_through_one_helper_as_drawn_by_hand() -> None:
    """Each client runs the first and the last unit, the helper a copy of the middle for each client, x before y."""
    plan = ticks.plan(CLIENTS, orders={**OWN, "h": "x/1F0 y/1F0 x/1B0 y/1B0"})
    assert picture(plan, CLIENT_FLEET, CLIENT_PROFILE) == drawn("""
  h ..0011...aaabbb..
  x 0....0aa.....a...
  y 11.....11b......b
h>x ....0.......a....
h>y ......1........b.
x>h .0......a........
y>h ..1.......b......
""")


def test_another_order_of_the_helper_is_followed() -> None:
    """With y before x in the helper's order, x waits."""
    plan = ticks.plan(CLIENTS, orders={**OWN, "h": "y/1F0 x/1F0 y/1B0 x/1B0"})
    assert picture(plan, CLIENT_FLEET, CLIENT_PROFILE)[:3] == drawn("""
  h ...1100...bbbaaa..
  x 0.......0aa......a
  y 11....11b.....b...
""")


def test_rows_of_lanes_carry_their_names() -> None:
    """Every row has its lane, action and link; a transfer has the action of its sender."""
    plan = ticks.plan(CLIENTS, orders={**OWN, "h": "x/1F0 y/1F0 x/1B0 y/1B0"})
    rows = forecast(plan, CLIENT_FLEET, CLIENT_PROFILE).rows
    assert {(r.device, r.lane, r.action, r.bytes) for r in rows if r.device in ("h>x", "x>h")} == {
        ("x>h", "x", "x/0F0", 1),
        ("h>x", "x", "x/1F0", 1),
        ("x>h", "x", "x/2B0", 1),
        ("h>x", "x", "x/1B0", 1),
    }


def test_a_deadlock_of_a_plan_is_reported_with_its_positions() -> None:
    """A deadlock through three devices is reported with each position."""
    plan = ticks.plan(CLIENTS, orders={**OWN, "x": "x/0F0 x/0B0 x/2F0 x/2B0", "h": "x/1F0 y/1F0 x/1B0 y/1B0"})
    assert deadlocked(plan, CLIENT_PROFILE) == {"x": 1, "h": 2, "y": 3}
    with pytest.raises(Refused, match=r"deadlocks; x waits for ever at action 2 of its order"):
        forecast(plan, CLIENT_FLEET, CLIENT_PROFILE)


def test_a_device_with_two_segments_of_a_lane_needs_an_order() -> None:
    """The default order would finish a client's first segment before its last, which deadlocks."""
    assert deadlocked(ticks.plan(CLIENTS), CLIENT_PROFILE) == {"x": 1, "y": 1, "h": 1}


@pytest.mark.parametrize("action", ["z/0F0", "x/1F0", "x/0F1", "x/0F0"])
def test_an_action_that_is_not_the_devices_own_is_refused(action: str) -> None:
    """Actions of unknown lanes, foreign segments, unknown micro-batches and repeated actions are refused."""
    plan = ticks.plan(CLIENTS, orders={**OWN, "x": f"{OWN['x']} {action}"})
    with pytest.raises(Refused, match=f"the order of x has {action}, which is not its own or is there twice"):
        forecast(plan, CLIENT_FLEET, CLIENT_PROFILE)


# Training a part, and a collector

UNITS = [ticks.unit("u0", trained=2), ticks.unit("u1", trained=3), ticks.unit("u2", trained=4)]
TRIO = ticks.fleet("a b s")
TRIO_PROFILE = ticks.profile(UNITS, {name: ([1, 1, 2], [1, 2, 3]) for name in "abs"})


def test_backwards_end_at_the_first_trained_unit() -> None:
    """Forward takes 1+1+2 ticks everywhere; backward 3 for the last unit, 3+2 down to the middle one, 6 in all."""
    trained = {"a": "u2", "b": "u1", "s": ""}
    plan = ticks.plan({name: [segment("u0 u1 u2", name, trains=units)] for name, units in trained.items()})
    assert picture(plan, TRIO, TRIO_PROFILE) == drawn("""
a 0000aaa...
b 1111bbbbb.
s 2222cccccc
""")


def test_units_between_trained_ones_are_differentiated_too() -> None:
    """The gradient of u0 passes through u1 and u2."""
    plan = ticks.plan({"main": [segment("u0 u1 u2", "a", trains="u0")]})
    assert picture(plan, TRIO, TRIO_PROFILE) == ["a 0000aaaaaa"]


def test_a_group_sums_only_what_it_trains() -> None:
    """a and b train u1's 3 bytes: each sends 2·1/2·3 of them in 2·3/2 ticks; all of the model would be 9."""
    plan = ticks.plan({"main": [segment("u0 u1 u2", "a b", trains="u1")]})
    said = forecast(plan, TRIO, TRIO_PROFILE)
    assert [(row.device, row.bytes) for row in said.rows if row.action == "main/0R0"] == [("a", 3), ("b", 3)]
    assert ticks.ticks(said.round_s) == 4 + 5 + 3
    assert [(link.source, link.target, link.bytes) for link in said.link_bytes] == [("a", "b", 3), ("b", "a", 3)]


COLLECTED = replace(
    ticks.plan({"a": [segment("u0 u1 u2", "a", trains="u2")], "b": [segment("u0 u1 u2", "b", trains="u1")]}),
    collector="s",
)


def test_a_collector_sends_parameters_first_and_receives_gradients_last() -> None:
    """s sends the 7 bytes that either trains to a, then to b; a gives back 4 of u2 after its backward, b 3 of u1.
    Nobody trains u0, and nobody is sent its 2 bytes."""
    assert picture(COLLECTED, TRIO, TRIO_PROFILE) == drawn("""
  a .......0000aaa............
  b ..............1111bbbbb...
a>s ..............UUUU........
b>s .......................UUU
s>a UUUUUUU...................
s>b .......UUUUUUU............
""")


def test_rows_and_bytes_of_a_collector() -> None:
    """U of micro-batch 0 on the links both ways; s has no row of its own, and is busy for no time."""
    said = forecast(COLLECTED, TRIO, TRIO_PROFILE)
    updates = [(row.device, row.lane, row.action, row.bytes) for row in said.rows if row.is_transfer]
    assert updates == [
        ("s>a", "a", "a/0U0", 7),
        ("s>b", "b", "b/0U0", 7),
        ("a>s", "a", "a/0U0", 4),
        ("b>s", "b", "b/0U0", 3),
    ]
    assert {(link.source, link.target): link.bytes for link in said.link_bytes} == {
        ("a", "s"): 4,
        ("b", "s"): 3,
        ("s", "a"): 7,
        ("s", "b"): 7,
    }
    assert {one.device: ticks.ticks(one.amount) for one in said.busy_s} == {"a": 7, "b": 9, "s": 0}


def test_a_collector_that_trains_sends_itself_nothing() -> None:
    """A collector with a lane of its own starts at once and sends itself nothing."""
    plan = replace(COLLECTED, collector="a")
    assert picture(plan, TRIO, TRIO_PROFILE) == drawn("""
  a 0000aaa............
  b .......1111bbbbb...
a>b UUUUUUU............
b>a ................UUU
""")


def test_gradients_are_sent_after_the_last_backward_only() -> None:
    """Two micro-batches cause one update each way."""
    plan = replace(ticks.plan({"a": [segment("u0 u1 u2", "a", trains="u2")]}, micro_batches=2), collector="s")
    assert picture(plan, TRIO, TRIO_PROFILE) == drawn("""
  a ....0000aaa1111bbb....
a>s ..................UUUU
s>a UUUU..................
""")


def test_a_collector_replaces_all_reduces() -> None:
    """With a collector every member sends its own gradients and no all-reduce runs."""
    plan = replace(ticks.plan({"main": [segment("u0 u1 u2", "a b", trains="u2")]}), collector="s")
    rows = forecast(plan, TRIO, TRIO_PROFILE).rows
    assert {row.device for row in rows if row.action == "main/0U0"} == {"s>a", "s>b", "a>s", "b>s"}
    assert not [row for row in rows if "R" in row.action]


def test_a_frozen_model_sends_no_update() -> None:
    """Without trainable parameters no update is sent."""
    frozen = ticks.profile([ticks.unit("u0")], {name: ([1], [1]) for name in "as"})
    plan = replace(ticks.plan({"a": [segment("u0", "a")]}), collector="s")
    assert picture(plan, ticks.fleet("a s"), frozen) == ["a 0a"]


# Thin and shared links


def thinned(*uses: LinkUse, latency: int = 0, out: int = 4) -> list[str]:
    """a hands 4 bytes to b, c hands 4 bytes to b; both lanes' second segments are b's."""
    units = [ticks.unit("u0", out=out), ticks.unit("u1")]
    profile = ticks.profile(units, {name: ([1, 1], [1, 1]) for name in "abc"})
    lanes = {name: [segment("u0", name), segment("u1", "b")] for name in "ac"}
    plan = replace(ticks.plan(lanes, orders={"b": "a/1F0 a/1B0 c/1F0 c/1B0"}), links=uses)
    return picture(plan, ticks.fleet("a b c", latency), profile)


def use(ends: str, *, share: float = 1.0, ratio: float = 1.0) -> LinkUse:
    """Parse `a>b` to a link use, sparse if a ratio is given."""
    source, target = ends.split(">")
    return LinkUse(source=source, target=target, share=share, ratio=ratio, codec="top-k" if ratio > 1.0 else "dense")


@pytest.mark.parametrize(
    ("uses", "into_b", "a_ends"),
    [
        ((), {"a>b": ".0000", "c>b": ".....1111"}, 9),
        (("a>b", "c>b"), {"a>b": ".00000000", "c>b": ".11111111"}, 13),
        (("a>b",), {"a>b": ".00000000", "c>b": ".1111"}, 13),
        (("b>a",), {"a>b": ".0000", "c>b": ".....1111"}, 10),
    ],
)
def test_shares_of_a_medium_run_in_parallel_at_part_of_its_rate(
    uses: Sequence[str], into_b: dict[str, str], a_ends: int
) -> None:
    """Whole links take turns at b's port. Half of the medium lasts twice as long, and waits for no port, nor does a
    port wait for it. Of one direction it is of that one only."""
    shown = thinned(*(use(ends, share=0.5) for ends in uses))
    lines = {line.split()[0]: line.split()[1].rstrip(".") for line in shown}
    assert {name: lines[name] for name in into_b} == into_b
    assert len(lines["a"]) == a_ends


def test_transfers_ready_together_start_by_micro_batch_then_by_lane() -> None:
    """While b takes in a's first, a's second and c's first become ready, both at 2: c's goes before. Whatever is ready
    later comes after."""
    profile = ticks.profile(
        [ticks.unit("u0", out=4), ticks.unit("u1")],
        {"a": ([1, 9], [1, 9]), "b": ([9, 1], [9, 1]), "c": ([2, 9], [1, 9])},
    )
    lanes = {name: [segment("u0", name, warmup=2), segment("u1", "b")] for name in "ac"}
    orders = {"b": " ".join(f"{lane}/1{letter}{m}" for m in range(2) for lane in "ac" for letter in "FB")}
    shown = picture(ticks.plan(lanes, micro_batches=2, orders=orders), ticks.fleet("a b c"), profile)
    assert [line.rstrip(".") for line in shown if ">b" in line] == drawn("""
a>b .0000....1111
c>b .....2222....3333
""")


def test_a_share_carries_one_transfer_at_a_time() -> None:
    """Three micro-batches of 2 bytes at half of the rate follow each other, 4 ticks each."""
    profile = ticks.profile([ticks.unit("u0", out=2), ticks.unit("u1")], {name: ([1, 1], [1, 1]) for name in "ab"})
    lanes = {"main": [segment("u0", "a", warmup=3), segment("u1", "b")]}
    plan = replace(ticks.plan(lanes, micro_batches=3), links=(use("a>b", share=0.5),))
    assert picture(plan, ticks.fleet("a b"), profile)[2] == "a>b .000011112222...."


def test_updates_use_their_share_too() -> None:
    """With thirds of the medium into s, gradients of 4 and 3 bytes take 12 and 9 ticks and do not meet."""
    third = tuple(use(f"{name}>s", share=1 / 3) for name in "ab")
    shown = picture(replace(COLLECTED, links=third), TRIO, TRIO_PROFILE)
    assert shown[2:4] == drawn("""
a>s ..............UUUUUUUUUUUU......
b>s .......................UUUUUUUUU
""")


@pytest.mark.parametrize(
    ("ratio", "wire"), [(1.0, 40), (1.1, 40), (1.2, 20), (2.0, 12), (2.5, 10), (4.0, 8), (10.0, 3), (1000.0, 3)]
)
def test_top_k_sends_values_and_indices_of_kept_elements(ratio: float, wire: int) -> None:
    """40 bytes are 10 elements: 2 bytes for each kept one and its index, and dense where all are kept; rows say wire
    bytes."""
    units = [ticks.unit("u0", out=40, back=40), ticks.unit("u1")]
    profile = ticks.profile(units, {name: ([1, 1], [1, 1]) for name in "ab"})
    plan = ticks.plan({"main": [segment("u0", "a"), segment("u1", "b")]})
    said = forecast(replace(plan, links=(use("a>b", ratio=ratio),)), ticks.fleet("a b"), profile)
    assert [(r.device, r.bytes, ticks.ticks(r.end_s - r.start_s)) for r in said.rows if r.is_transfer] == [
        ("a>b", wire, wire),
        ("b>a", 40, 40),
    ]
    assert ticks.ticks(said.round_s) == 1 + wire + 2 + 40 + 1


def test_top_k_rounds_up_per_sample() -> None:
    """A group of two gets a message each of one sample of two: of 5 elements one in 4 is 2, with a bitmap 5 bytes."""
    profile = ticks.profile([ticks.unit("u0", out=20), ticks.unit("u1")], {name: ([1, 1], [1, 1]) for name in "abc"})
    lanes = {"main": [replace(segment("u0", "a"), shares=(Share(device="a", samples=2),)), segment("u1", "b c")]}
    plan = replace(ticks.plan(lanes), links=(use("a>b", ratio=4.0), use("a>c", ratio=4.0)))
    rows = forecast(plan, ticks.fleet("a b c"), profile).rows
    assert [(row.device, row.bytes) for row in rows if row.is_transfer and row.device[0] == "a"] == [
        ("a>b", 5),
        ("a>c", 5),
    ]


@pytest.mark.parametrize(("codec", "forward", "back"), [("top-k", 10, 10), ("forward-mask", 10, 8)])
def test_gradients_at_the_mask_of_the_forward_have_no_indices(codec: str, forward: int, back: int) -> None:
    """Of 10 elements 4 are kept: 8 bytes and a bitmap of 2, which gradients at the same elements need not send."""
    profile = ticks.profile([ticks.unit("u0", out=40, back=40), ticks.unit("u1")], {n: ([1, 1], [1, 1]) for n in "ab"})
    plan = ticks.plan({"main": [segment("u0", "a"), segment("u1", "b")]})
    links = (use("a>b", ratio=2.5), replace(use("b>a", ratio=2.5), codec=codec))
    rows = forecast(replace(plan, links=links), ticks.fleet("a b"), profile).rows
    assert [(row.device, row.bytes) for row in rows if row.is_transfer] == [("a>b", forward), ("b>a", back)]


def test_updates_are_dense_on_thin_links() -> None:
    """A codec applies only to tensors that cross cuts."""
    thin = tuple(use(f"{name}>s", ratio=100.0) for name in "ab")
    assert picture(replace(COLLECTED, links=thin), TRIO, TRIO_PROFILE) == picture(COLLECTED, TRIO, TRIO_PROFILE)


@pytest.mark.parametrize(("ratio", "moved"), [(1.0, 40), (4.0, 8)])
def test_cpu_costs_of_links_count_wire_bytes(ratio: float, moved: int) -> None:
    """On one core a byte costs what its encryption does, a tick: a's forward lasts 1 + what it sends, its backward
    1 + the 8 dense bytes it receives; b has two cores and loses nothing."""
    units = [ticks.unit("u0", out=40, back=8), ticks.unit("u1")]
    profile = ticks.profile(units, {name: ([1, 1], [1, 1]) for name in "ab"})
    costly = {"link_cpu_s_per_byte": ticks.TICK_S}
    whole = ticks.fleet("a b")
    fleet = replace(
        whole, devices=(replace(whole.devices[0], **costly), replace(whole.devices[1], cores=2.0, **costly))
    )
    plan = ticks.plan({"main": [segment("u0", "a"), segment("u1", "b")]})
    rows = forecast(replace(plan, links=(use("a>b", ratio=ratio),)), fleet, profile).rows
    assert {r.action: ticks.ticks(r.end_s - r.start_s) for r in rows if not r.is_transfer} == {
        "main/0F0": 1 + moved,
        "main/1F0": 1,
        "main/1B0": 1,
        "main/0B0": 1 + 8,
    }
