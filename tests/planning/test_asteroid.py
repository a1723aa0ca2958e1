"""Strategy asteroid: effects of its options, and errors for infeasible problems."""

import random
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings

from fleetune.clock import Clock
from fleetune.contracts.plan import PlanResult, Segment
from fleetune.contracts.profile import Profile
from fleetune.errors import Infeasible, Refused
from fleetune.planning import Problem, solve
from fleetune.planning.hpp_problem import to_hpp_problem
from fleetune.solving.hpp.solve import solve as solve_hpp
from tests.support.clock import fleets
from tests.support.planning.instances import jagged, names_of, small, tiny

pytestmark = pytest.mark.usefixtures("short_walks")

PROPERTY = settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def solved(problem: Problem, **options: Any) -> PlanResult | None:
    """The result; None if the problem is infeasible."""
    try:
        return solve("asteroid", replace(problem, options=options))
    except Infeasible:
        return None


def segments(problem: Problem, **options: Any) -> tuple[Segment, ...]:
    """Segments of the plan."""
    return solve("asteroid", replace(problem, options=options)).plan.lanes[0].segments


@PROPERTY
@given(problem=tiny(devices=4))
def test_objective_and_bound_are_the_solvers(problem: Problem) -> None:
    """The clock's round equals the solver's objective, also if links cost processor time."""
    problem = jagged(problem, random.Random(1))
    result = solved(problem)
    if result is None:
        return
    posed = to_hpp_problem(problem, names_of(problem))
    solution = solve_hpp(posed.problem, method="search", extras=posed.extras)
    assert result.objective == pytest.approx(solution.objective, abs=1e-9)
    assert result.lower_bound == solution.lower_bound
    assert result.method == "search"


def test_a_device_that_slows_the_round_is_left_out() -> None:
    """Device c, a thousand times slower than a, is left out, because one sample of one unit would delay the round."""
    profile = fleets.profile(fleets.UNITS, {"a": 0.001, "b": 0.002, "c": 1.0})
    problem = replace(small(micro_batch_samples=8, micro_batches=6), profile=profile)
    assert "c" not in solve("asteroid", problem).plan.devices
    assert set(solve("asteroid", replace(problem, options={"every_device": True})).plan.devices) == {"a", "b", "c"}


def test_a_list_of_warmups_fixes_the_segments() -> None:
    """Given warm-ups are kept in order, policies yield one per segment, and free warm-ups do not increase."""
    problem = small(micro_batch_samples=8, micro_batches=6)
    assert [segment.warmup for segment in segments(problem, warmup=[4, 2])] == [4, 2]
    usual = segments(problem, warmup="P-p")
    assert [segment.warmup for segment in usual] == list(range(len(usual), 0, -1))
    free = [segment.warmup for segment in segments(problem, warmup="free")]
    assert free == sorted(free, reverse=True)


def test_coarser_layers_are_cut_apart_no_more() -> None:
    """With two blocks of two units, every cut lies between the blocks."""
    units = [fleets.unit(f"{part}.{k}") for part in ("l.0", "l.1") for k in "ab"]
    problem = replace(small(micro_batch_samples=8), profile=fleets.profile(units, fleets.PACES))
    for segment in segments(problem, layers="blocks", warmup=[3, 1]):
        assert len(segment.units) == 2
    assert [s.units for s in segments(problem, layers=1)] == [tuple(unit.name for unit in units)]


def test_a_slower_link_end_is_heeded() -> None:
    """If a byte costs b's only core 1 ms, a runs the whole model alone; without that cost b shares the work."""
    problem = small(micro_batch_samples=8, micro_batches=6, devices=["a", "b"])
    assert len(solve("asteroid", problem).plan.devices) == 2
    devices = tuple(replace(d, link_cpu_s_per_byte=1e-3) for d in problem.fleet.devices)
    costly = replace(problem, fleet=replace(problem.fleet, devices=devices))
    assert all(len(segment.devices) == segment_count(costly) for segment in segments(costly, devices=["a", "b"]))


def segment_count(problem: Problem) -> int:
    """Devices of the only segment: a plan sends nothing between segments if sending is expensive."""
    lane = solve("asteroid", problem).plan.lanes[0]
    assert len(lane.segments) == 1
    return len(lane.segments[0].devices)


@PROPERTY
@given(problem=tiny(devices=4))
def test_room_for_snapshots_and_backups_is_there(problem: Problem) -> None:
    """A copy of what a device trains and its optimizer state; and the same of the segment before, where that has one
    device, on a device of the segment. Neither makes a plan faster than one without."""
    plain = solved(problem)
    clock = Clock(problem.fleet, problem.profile)
    for options in ({"snapshots": 1}, {"backups": 1}):
        result = solved(problem, **options)
        if result is None:
            continue
        assert plain is not None and clock.round_s(result.plan) >= plain.objective * (1 - 1e-9)
        found = result.plan.lanes[0].segments
        alone = [index for index, segment in enumerate(found) if len(segment.devices) == 1 and len(found) > 1]
        assert [each.segment for each in result.plan.backups] == (alone if "backups" in options else [])
        for segment in found:
            for device in segment.devices:
                needed = clock.memory_bytes(result.plan, device)
                needed += options.get("snapshots", 0) * trained_bytes(problem.profile, segment)
                assert needed <= problem.fleet.device(device).memory_bytes


def trained_bytes(profile: Profile, segment: Segment) -> int:
    """Trained bytes plus two bytes of optimizer state per trained byte."""
    return 3 * sum(profile.unit(name).trainable_bytes for name in segment.units)


def fleet_of(memory_bytes: int) -> fleets.Fleet:
    """Devices a, b and c with equal budgets."""
    return fleets.fleet(*(fleets.device(name, memory_bytes) for name in "abc"))


def test_backups_take_the_memory_they_need() -> None:
    """A unit has 1000 bytes of weights and 3000 of state and gradients. Two segments of two units fit 9250 bytes each,
    but the snapshots of either need 12000 more, as the next one is made beside the last one, and so do the backups of
    the other."""
    problem = replace(small(), fleet=fleet_of(9250), options={"devices": ["a", "b"], "warmup": [1, 1]})
    assert solve("asteroid", problem).plan.lanes[0].segments[0].devices == ("a",)
    backed_up = {**problem.options, "backups": 1}
    with pytest.raises(Infeasible, match="memory reserved for backups: 12000 bytes on [ab]"):
        solve("asteroid", replace(problem, fleet=fleet_of(9250 + 12000), options=backed_up))
    enough = solve("asteroid", replace(problem, fleet=fleet_of(9250 + 24000), options=backed_up)).plan
    assert len(enough.lanes[0].segments) == 2 and [each.holder for each in enough.backups] == ["b", "a"]
    assert enough.backup_every_rounds >= 1


def test_a_fleet_that_is_too_small_names_the_device_and_its_missing_bytes() -> None:
    """A unit needs 4000 bytes and 100 per kept sample, the runtime 50; every device has 3000."""
    with pytest.raises(Infeasible, match="device a.* lacks 1150 bytes for layer u0 .*memory less what an idle worker"):
        solve("asteroid", replace(small(), fleet=fleet_of(3000)))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"method": "magic"}, "magic.*search"),
        ({"method": "hetpipe"}, "hetpipe is asynchronous"),
        ({"snapshots": 2}, "snapshots is 2; allowed are 0, 1"),
        ({"backups": -1}, "backups is -1; allowed are 0, 1"),
        ({"layers": "halves"}, "layers is 'halves'; allowed are units, blocks and a number"),
        ({"layers": 0}, "layers is 0; allowed are"),
        ({"time_limit_s": 0}, "time_limit_s must be a number above 0"),
        ({"method": "dapple", "every_device": True}, "every_device is an option of method search.* dapple does not"),
        ({"method": "asteroid", "time_limit_s": 1.0}, "time_limit_s is an option of method search.* asteroid does not"),
        ({"warmup": "P"}, "'P' is not known; allowed are"),
        ({"warmup": [1, 2]}, "increases towards the last"),
        ({"warmup": [4, 3, 2, 1]}, "4 stages"),
    ],
)
def test_options_that_cannot_be_are_refused(options: dict[str, Any], words: str) -> None:
    """Malformed options are refused with a sentence before the search starts."""
    with pytest.raises(Refused, match=words):
        solve("asteroid", small(**options))


def test_segments_that_would_share_a_large_trained_weight_are_joined() -> None:
    """A pipeline is fastest but for the gradients of a weight of 2 MB that its ends read, which cross a link at 1 MB/s
    after every round, as those of an embedding tied to its head do. The plan has one segment then, or none smaller.
    """
    problem = small(micro_batch_samples=8, micro_batches=6)
    slow = tuple(replace(link, bytes_per_s=1e6) for link in problem.fleet.links)
    big = replace(fleets.UNITS[0], param_bytes=2_000_000, trainable_bytes=2_000_000, tied=("w",))
    units = (big, *fleets.UNITS[1:3], replace(big, name="u3"))
    problem = replace(problem, fleet=replace(problem.fleet, links=slow))
    untied = replace(problem, profile=replace(fleets.PROFILE, units=units))
    tied = replace(problem, profile=replace(fleets.PROFILE, units=units, tied_bytes={"w": 2_000_000}))
    assert len(segments(untied)) > 1 and len(segments(tied)) == 1
    clock, apart = Clock(tied.fleet, tied.profile), solve("asteroid", untied).plan
    found = solve("asteroid", tied)
    assert found.objective == clock.round_s(found.plan) < clock.round_s(apart) - 1
    assert found.lower_bound is not None and found.lower_bound <= found.objective
