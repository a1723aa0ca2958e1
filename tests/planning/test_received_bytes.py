"""Planners count what a group receives to sum its gradients as the clock does, to the byte."""

from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fleetune.checks import findings
from fleetune.clock import Clock
from fleetune.contracts.plan import Plan, PlanResult
from fleetune.errors import Infeasible
from fleetune.planning import Problem, solve
from fleetune.planning.recompute import memory_may_bind
from fleetune.planning.recut import recut
from fleetune.planning.segment_costs import SegmentCosts
from tests.support.clock import fleets
from tests.support.planning.instances import small, tiny

pytestmark = pytest.mark.usefixtures("short_walks")

PROPERTY = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
GROUPED = (("asteroid", {}), ("dp", {}), ("pp", {"groups": [["a", "b"], ["c"]]}), ("pp", {"groups": [["c", "a", "b"]]}))


def with_memory(problem: Problem, **memory_bytes: int) -> Problem:
    """The problem with other budgets of some devices."""
    devices = tuple(
        replace(each, memory_bytes=memory_bytes.get(each.name, each.memory_bytes)) for each in problem.fleet.devices
    )
    return replace(problem, fleet=replace(problem.fleet, devices=devices))


def solved(strategy: str, problem: Problem) -> PlanResult | None:
    """The result; None where nothing fits."""
    try:
        return solve(strategy, problem)
    except Infeasible:
        return None


def round_s(found: PlanResult | None) -> float:
    """Seconds of a plan's round; infinite without one."""
    return float("inf") if found is None else found.objective


@PROPERTY
@given(tiny(), st.sampled_from(GROUPED), st.data())
def test_a_plan_of_groups_fits_to_the_byte(
    problem: Problem, asked: tuple[str, dict[str, object]], data: st.DataObject
) -> None:
    """A plan passes the checks of memory. Budgets of exactly what it needs allow it, by the checks and by the planner;
    with a byte less on one device the checks refuse it, and whatever is planned instead passes them."""
    strategy, options = asked
    names = {device.name for device in problem.fleet.devices}
    if strategy == "pp" and names != set("abc"):
        return
    if strategy == "pp" and problem.micro_batch_samples < max(len(group) for group in options["groups"]):  # type: ignore[attr-defined]
        return
    problem = replace(problem, options=options)
    found = solved(strategy, problem)
    if found is None:
        return
    clock = Clock(problem.fleet, problem.profile)
    needed = {device: clock.memory_bytes(found.plan, device) for device in found.plan.devices}
    if min(needed.values()) < 2:
        return
    exact = with_memory(problem, **needed)
    assert findings(found.plan, exact.fleet, exact.profile) == ()
    if strategy == "dp" or len(found.plan.lanes[0].segments) == 1:
        assert round_s(solved(strategy, exact)) == pytest.approx(found.objective, rel=1e-9)
    device = data.draw(st.sampled_from(sorted(needed)))
    tight = with_memory(problem, **needed | {device: needed[device] - 1})
    assert any("1 byte" in said for said in map(str, findings(found.plan, tight.fleet, tight.profile)))
    other = solved(strategy, tight)
    assert other is None or findings(other.plan, tight.fleet, tight.profile) == ()


@PROPERTY
@given(tiny(), st.booleans())
def test_a_recut_chain_has_room_for_what_its_groups_receive(problem: Problem, alone: bool) -> None:
    """Plans that are cut anew while devices wait pass the checks of memory, whether samples are shared or not."""
    names = [device.name for device in problem.fleet.devices]
    groups = tuple((name,) for name in names) if alone else (tuple(names[:2]), *((name,) for name in names[2:]))
    if max(map(len, groups)) > problem.micro_batch_samples:
        return
    try:
        plan = recut("pp", SegmentCosts(problem), groups, "2(P-p)-1")
    except Infeasible:
        return
    assert findings(plan, problem.fleet, problem.profile) == ()


def test_a_device_with_room_for_no_messages_works_alone() -> None:
    """The whole model of four units takes 16,050 bytes and 400 a kept sample. Two devices with 20,449 bytes have room
    for it, but not for the 4000 bytes that each receives beside one sample; with a byte more they share it."""

    even = fleets.profile(fleets.UNITS, dict.fromkeys("abc", 0.001))

    def devices(size: int) -> tuple[str, ...]:
        problem = replace(small(2, devices=["a", "b"], layers=1), fleet=fleet_of(size), profile=even)
        return solve("asteroid", problem).plan.devices

    def fleet_of(size: int) -> fleets.Fleet:
        return fleets.fleet(*(fleets.device(name, size) for name in "abc"), bytes_per_s=1e12, latency_s=0.0)

    assert devices(20_449) == ("a",)
    assert devices(20_450) == ("a", "b")


@pytest.mark.parametrize(("names", "binds"), [("a", False), ("ab", True)])
def test_memory_may_bind_where_only_messages_do_not_fit(names: str, binds: bool) -> None:
    """One device with room for all units and activations is not short of memory; several are, as they may form a
    group."""
    kept = min(3, 2 * len(names)) * len(names) * 4
    size = 50 + 16_000 + kept * 400
    fleet = fleets.fleet(*(fleets.device(name, size) for name in names))
    assert memory_may_bind(replace(small(), fleet=fleet)) == binds
    roomy = fleets.fleet(*(fleets.device(name, size + 4000) for name in names))
    assert not memory_may_bind(replace(small(), fleet=roomy))


def sharing(room_a: int, room_b: int) -> Problem:
    """Four samples on a and b, which have room for the model, what they receive and so many samples each."""
    sizes = {"a": 20_050 + 400 * room_a, "b": 20_050 + 400 * room_b}
    fleet = fleets.fleet(*(fleets.device(name, size) for name, size in sizes.items()))
    return replace(small(4, 1, groups=[["a", "b"]]), fleet=fleet)


@pytest.mark.parametrize("cut_anew", [False, True])
@pytest.mark.parametrize(("room", "shares"), [((4, 4), [3, 1]), ((2, 2), [2, 2]), ((1, 3), [1, 3]), ((1, 2), None)])
def test_shares_of_a_group_leave_room_for_what_it_receives(
    room: tuple[int, int], shares: list[int] | None, cut_anew: bool
) -> None:
    """a, twice as fast as b, takes 3 of 4 samples where memory allows it, else as many as it has room for beside the
    4000 bytes that it receives; where both together have not the room, there is no plan."""
    problem = sharing(*room)

    def plan() -> Plan:
        if cut_anew:
            return recut("pp", SegmentCosts(problem), (("a", "b"),), "2(P-p)-1")
        return solve("pp", problem).plan

    if shares is None:
        with pytest.raises(Infeasible, match="lacks 400 bytes"):
            plan()
    else:
        assert [share.samples for share in plan().lanes[0].segments[0].shares] == shares
