"""Units that a device can be trained on with several samples only, such as batch norms over single values."""

from dataclasses import replace
from itertools import product

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from fleetune.checks import findings, validate
from fleetune.clock import Clock
from fleetune.contracts.plan import Plan
from fleetune.contracts.profile import fewest_samples
from fleetune.errors import Infeasible, Refused
from fleetune.planning import Problem, solve
from fleetune.planning.plan_result import segment, single_lane_plan
from fleetune.planning.revision import heavy, light
from tests.support.clock import fleets
from tests.support.planning.instances import needing, needy, scored, small
from tests.support.planning.solutions import PROPERTY, ready_for, solved

pytestmark = pytest.mark.usefixtures("short_walks")


def too_few(plan: Plan, problem: Problem) -> bool:
    """Whether a device has fewer samples than one of its units needs."""
    profile = problem.profile
    return any(
        share.samples < fewest_samples(map(profile.unit, each.units))
        for lane in plan.lanes
        for each in lane.segments
        for share in each.shares
    )


@settings(PROPERTY, max_examples=40)
@given(problem=needy())
def test_plans_give_each_device_enough_samples(strategy: str, problem: Problem) -> None:
    """Whatever the strategy, no device has fewer samples than one of its units needs; no check finds fault with a plan,
    and its bound is at most its round."""
    problem = ready_for(strategy, problem)
    result = solved(strategy, problem)
    if result is None:
        return
    assert not too_few(result.plan, problem)
    assert findings(result.plan, problem.fleet, problem.profile) == ()
    assert result.gap is None or result.gap >= 0


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(problem=needy(), lost=st.integers(0, 2))
def test_revised_plans_give_each_device_enough_samples(problem: Problem, lost: int) -> None:
    """Light and heavy revisions of data-parallel and hybrid plans keep the fewest samples of the units."""
    assume(len(problem.fleet.devices) > 1)
    gone = problem.fleet.devices[lost % len(problem.fleet.devices)].name
    for strategy in ("dp", "asteroid"):
        before = solved(strategy, problem)
        if before is None:
            continue
        for revise in (light, heavy):
            try:
                after = revise(problem, before.plan, [gone])
            except Infeasible:
                continue
            assert not too_few(after.plan, problem)


@settings(max_examples=150, deadline=None)
@given(problem=needy() | needy(monotone=False))
def test_data_parallel_shares_are_the_best_that_suffice(problem: Problem) -> None:
    """Of all shares with the fewest samples of the units on every device, none has a faster slowest device."""
    roomy = tuple(replace(device, memory_bytes=10**9) for device in problem.fleet.devices)
    problem = replace(problem, fleet=replace(problem.fleet, devices=roomy))
    names, batch = [device.name for device in roomy], problem.micro_batch_samples
    clock, least = Clock(problem.fleet, problem.profile), fewest_samples(problem.profile.units)

    def slowest_s(shares: tuple[int, ...]) -> float:
        return max(sum(clock.table_s(d, batch)[y - 1].tolist()) for d, y in zip(names, shares, strict=True))

    ways = [y for y in product(range(least, batch + 1), repeat=len(names)) if sum(y) == batch]
    if not ways:
        with pytest.raises(
            Infeasible,
            match=f"(needs at least ({least} samples|one sample) each; raise|cannot share the samples of unit)",
        ):
            solve("dp", problem)
        return
    shares = tuple(share.samples for share in solve("dp", problem).plan.lanes[0].segments[0].shares)
    assert slowest_s(shares) == pytest.approx(min(map(slowest_s, ways)), rel=1e-12)


def test_a_slow_device_that_got_one_sample_gets_two() -> None:
    """Of 4 samples, the slowest of two devices would get one; where units need two it gets two. Units that need one
    sample still get one."""
    problem = small(devices=["a", "c"])
    assert [share.samples for share in shares_of("dp", problem)] == [3, 1]
    assert [share.samples for share in shares_of("dp", needing(problem, 2))] == [2, 2]
    assert [share.samples for share in shares_of("dp", needing(problem, 1))] == [3, 1]


def shares_of(strategy: str, problem: Problem) -> tuple[object, ...]:
    """The shares of the first segment."""
    return solve(strategy, problem).plan.lanes[0].segments[0].shares


def test_a_segment_without_needy_units_may_have_single_samples() -> None:
    """Groups (a, b, c) and (a) share 3 samples: the cut leaves the only unit that needs two to the single device."""
    problem = needing(small(micro_batch_samples=3, groups=[["b", "c"], ["a"]]), 1, 1, 1, 2)
    plan = solve("pp", problem).plan
    assert [len(each.shares) for each in plan.lanes[0].segments] == [2, 1]
    assert sorted(share.samples for share in plan.lanes[0].segments[0].shares) == [1, 2]
    assert not too_few(plan, problem)


def test_a_group_without_enough_samples_anywhere_is_named() -> None:
    """The error names the group, the samples that each of its devices needs, and the micro-batch that would do."""
    problem = needing(small(micro_batch_samples=3, groups=[["b", "c"], ["a"]]), 2)
    words = r"micro_batch_samples is 3, but a group of 2 devices \(b, c\) needs at least 2 samples each; raise .* to 4"
    with pytest.raises(Infeasible, match=words):
        solve("pp", problem)
    with pytest.raises(Infeasible, match=r"group of 3 devices \(a, b, c\) needs at least 2 samples each; .* to 6"):
        solve("dp", needing(small(), 2))


def test_a_lost_device_leaves_enough_samples_to_the_others() -> None:
    """Data parallelism of 6 samples on a, b and c, of which each needs two: without a, c still has two."""
    problem = needing(small(micro_batch_samples=6), 2)
    found = light(problem, solve("dp", problem).plan, ["a"])
    assert {s.device: s.samples for s in found.plan.lanes[0].segments[0].shares} == {"b": 4, "c": 2}


def test_a_micro_batch_that_no_device_can_train_on_is_refused(strategy: str) -> None:
    """Every strategy refuses a micro-batch below the fewest samples of a unit, and names both."""
    problem = ready_for(strategy, needing(small(micro_batch_samples=1), 1, 1, 2))
    with pytest.raises(
        Refused, match="micro_batch_samples is 1, but unit u2 needs at least 2 samples .* raise it to 2"
    ):
        solve(strategy, problem)


def steep(problem: Problem) -> Problem:
    """The problem as measured from 2 samples on, with times whose line through 2 and 4 samples is below 0 at 1."""
    rows = ((0.001, 0.004, 0.008),) * len(problem.profile.units)
    times = tuple(replace(each, forward_s=rows, backward_s=rows) for each in problem.profile.times)
    return replace(problem, profile=replace(problem.profile, batch_sizes=(2, 4, 8), times=times))


def test_times_of_fewer_samples_than_can_be_measured_are_not_asked_for(strategy: str) -> None:
    """A model that cannot be trained on one sample was measured from two on; no planner, nor its bound, asks for the
    line through these at one. Where one sample could have been measured, that is refused."""
    problem = ready_for(strategy, steep(needing(small(), 1, 2)))
    if strategy == "dp":
        problem = replace(problem, options={"devices": ["a", "b"]})
    result = solve(strategy, problem)
    assert not too_few(result.plan, problem)
    assert result.gap is None or result.gap >= 0
    if strategy in ("dp", "asteroid", "d2ft"):
        with pytest.raises(Refused, match="1 samples would take"):
            solve(strategy, ready_for(strategy, steep(needing(problem, 1))))


def test_fewer_samples_take_as_long_as_the_fewest() -> None:
    """The clock has no time for what cannot be trained: at one sample it says that of two."""
    clock = Clock(fleets.FLEET, needing(small(), 1, 2, 1, 3).profile)
    plain = Clock(fleets.FLEET, fleets.PROFILE)
    for device in "abc":
        forward, backward = clock.unit_times(device, 1)
        assert forward == [plain.unit_times(device, max(1, least))[0][k] for k, least in enumerate((1, 2, 1, 3))]
        assert backward == [plain.unit_times(device, max(1, least))[1][k] for k, least in enumerate((1, 2, 1, 3))]
        assert (clock.table_s(device, 8)[2:] == plain.table_s(device, 8)[2:]).all()


@pytest.mark.parametrize(("samples", "faults"), [(2, 0), (1, 1)])
def test_a_plan_by_hand_with_too_few_samples_is_refused(samples: int, faults: int) -> None:
    """The finding names the device, its samples, the unit and what it needs, and what to do."""
    problem = needing(small(), 1, 1, 2, 1)
    units = problem.profile.units
    shares = [("b", 4 - samples), ("c", samples)]
    plan = single_lane_plan("hand", problem, [segment(units[:1], [("a", 4)], 3), segment(units[1:], shares, 1)])
    found = findings(plan, problem.fleet, problem.profile)
    assert len(found) == faults
    if faults:
        assert found[0] == (
            "device c has 1 of every 4 samples of segment main/1, but unit u2 needs at least 2 on each device to be "
            "trained; give it so many or more, or leave it out of the segment"
        )
        with pytest.raises(Refused, match="plan: device c has 1 of every 4 samples"):
            validate(plan, problem.fleet, problem.profile)


def test_scores_do_not_change_what_units_need() -> None:
    """Gated plans are placed with enough samples, too."""
    problem = scored(needing(small(micro_batch_samples=4), 2))
    assert not too_few(solve("d2ft", problem).plan, problem)
