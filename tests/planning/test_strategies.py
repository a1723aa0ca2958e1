"""Strategies single, dp and pp on problems with known plans, and their errors."""

from dataclasses import replace
from itertools import combinations, permutations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fleetune.checks import findings
from fleetune.clock import Clock
from fleetune.contracts.plan import Segment
from fleetune.contracts.run_config import STRATEGIES
from fleetune.errors import Infeasible, Refused
from fleetune.planning import Problem, solve, strategies
from fleetune.planning.plan_result import segment, single_lane_plan
from fleetune.planning.segment_costs import GroupCosts, SegmentCosts
from fleetune.solving.hpp.problem import warmups
from tests.support.clock import fleets
from tests.support.planning.instances import small, tiny

PROPERTY = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def segments(strategy: str, problem: Problem) -> tuple[Segment, ...]:
    """Segments of the plan's only lane."""
    return solve(strategy, problem).plan.lanes[0].segments


def test_the_names_that_a_config_may_give_are_those_of_the_strategies() -> None:
    """Configs are checked against a list of names, without an import of every solver; it names all and no others."""
    assert sorted(STRATEGIES) == sorted(strategies())


def test_single_takes_the_fastest_that_is_large_enough() -> None:
    """The fastest device is a; if a is too small, b is taken."""
    assert segments("single", small())[0].devices == ("a",)
    problem = small()
    tight = fleets.fleet(fleets.device("a", 1000), fleets.device("b"), fleets.device("c"))
    assert segments("single", with_fleet(problem, tight))[0].devices == ("b",)


def with_fleet(problem: Problem, fleet: fleets.Fleet) -> Problem:
    """A copy of the problem on another fleet."""
    return Problem(
        fleet=fleet,
        profile=problem.profile,
        micro_batch_samples=problem.micro_batch_samples,
        micro_batches=problem.micro_batches,
        options=problem.options,
    )


def test_single_on_one_device_is_proven_best() -> None:
    """On a fleet of one device the round meets the bound."""
    problem = with_fleet(small(), fleets.fleet(fleets.device("a")))
    assert solve("single", problem).status == "optimal"


def test_dp_allocates_samples_by_speed() -> None:
    """Of 7 samples a (1 ms) gets 4, b (2 ms) 2 and c (4 ms) 1."""
    shares = segments("dp", small(micro_batch_samples=7))[0].shares
    assert [(share.device, share.samples) for share in shares] == [("a", 4), ("b", 2), ("c", 1)]


def test_dp_allocates_within_memory() -> None:
    """The model needs 20050 bytes and 400 a sample: a with room for one sample takes one, however fast it is."""
    tight = fleets.fleet(fleets.device("a", 20050 + 400), fleets.device("b"), fleets.device("c"))
    shares = segments("dp", with_fleet(small(micro_batch_samples=7), tight))[0].shares
    assert [(share.device, share.samples) for share in shares] == [("a", 1), ("b", 4), ("c", 2)]


def test_pp_balances_by_measured_time() -> None:
    """a is twice as fast as b: of 4 equal units it takes 3 (3 : 2 beats 4 : 0 and 2 : 4)."""
    problem = small(devices=["a", "b"], order="given")
    assert [s.units for s in segments("pp", problem)] == [("u0", "u1", "u2"), ("u3",)]


def test_pp_takes_groups_as_given() -> None:
    """With groups, a runs the first segment, and b and c share the second by speed."""
    found = segments("pp", small(groups=[["a"], ["b", "c"]]))
    assert [s.devices for s in found] == [("a",), ("b", "c")]
    assert [share.samples for share in found[1].shares] == [3, 1]
    assert [s.warmup for s in found] == [3, 1]


@PROPERTY
@given(problem=tiny())
def test_pp_in_a_given_order_has_the_fastest_slowest_segment(problem: Problem) -> None:
    """Cuts are as balanced as the best of all feasible cuts, by measured time alone."""
    names = [device.name for device in problem.fleet.devices]
    options = {"order": "given"}
    problem = Problem(**{**fields(problem), "options": options})
    clock = Clock(problem.fleet, problem.profile)
    ways = [cut for cut in cuts(problem, len(names)) if fits(problem, names, cut)]
    try:
        found = solve("pp", problem).plan
    except Infeasible:
        assert ways == []
        return
    work = [slowest_s(clock, problem, names, way) for way in ways]
    ends = [len(s.units) for s in found.lanes[0].segments]
    edges = tuple(sum(ends[:k]) for k in range(len(ends) + 1))
    assert edges in ways
    rounds = [clock.round_s(planned(problem, names, way)) for way in ways]
    balanced = [r for r, w in zip(rounds, work, strict=True) if w == pytest.approx(min(work))]
    assert clock.round_s(found) <= max(balanced) + 1e-12


@PROPERTY
@given(problem=tiny())
def test_pp_tries_every_order(problem: Problem) -> None:
    """With `order: best` the round is at most that of any given order."""
    names = [device.name for device in problem.fleet.devices]
    rounds = {}
    for order in permutations(names):
        try:
            given_order = Problem(**{**fields(problem), "options": {"devices": list(order), "order": "given"}})
            rounds[order] = solve("pp", given_order).objective
        except Infeasible:
            continue
    try:
        assert solve("pp", problem).objective == pytest.approx(min(rounds.values()))
    except Infeasible:
        assert rounds == {}


def fields(problem: Problem) -> dict[str, object]:
    """Fields of a problem by name."""
    return {name: getattr(problem, name) for name in Problem.__dataclass_fields__}  # type: ignore[attr-defined]


def cuts(problem: Problem, parts: int) -> list[tuple[int, ...]]:
    """All ways to cut the units into `parts` at permitted positions."""
    units = problem.profile.units
    allowed = [k for k in range(1, len(units)) if units[k - 1].cut_after]
    return [(0, *inner, len(units)) for inner in combinations(allowed, parts - 1)]


def planned(problem: Problem, names: list[str], edges: tuple[int, ...]) -> object:
    """The pipeline of single devices with these cuts."""
    ks = warmups("2(P-p)-1", len(names), problem.micro_batches)
    units, batch = problem.profile.units, problem.micro_batch_samples
    made = [segment(units[edges[p] : edges[p + 1]], [(name, batch)], ks[p]) for p, name in enumerate(names)]
    return single_lane_plan("pp", problem, made)


def fits(problem: Problem, names: list[str], edges: tuple[int, ...]) -> bool:
    """True if the checks find nothing."""
    return not findings(planned(problem, names, edges), problem.fleet, problem.profile)


def slowest_s(clock: Clock, problem: Problem, names: list[str], edges: tuple[int, ...]) -> float:
    """Forward and backward seconds of the slowest segment."""
    batch = problem.micro_batch_samples
    both = [[f + b for f, b in zip(*clock.unit_times(name, batch), strict=True)] for name in names]
    return max(sum(both[p][edges[p] : edges[p + 1]]) for p in range(len(names)))


def test_more_devices_than_samples_is_infeasible_in_words() -> None:
    """A group with more devices than samples is refused."""
    with pytest.raises(Infeasible, match="micro_batch_samples is 2, but a group of 3 devices .a, b, c. needs"):
        solve("dp", small(micro_batch_samples=2))
    with pytest.raises(Infeasible, match="a group of 2 devices .b, c."):
        solve("pp", small(micro_batch_samples=1, groups=[["a"], ["b", "c"]]))


def test_more_segments_than_pieces_is_infeasible_in_words() -> None:
    """Two separable pieces on three devices are infeasible."""
    units = [fleets.unit(f"u{k}", cut_after=k == 1) for k in range(4)]
    problem = Problem(
        fleet=fleets.FLEET, profile=fleets.profile(units, fleets.PACES), micro_batch_samples=4, micro_batches=3
    )
    with pytest.raises(Infeasible, match="has 3 segments, but the model can be cut into 2 pieces at most"):
        solve("pp", problem)


@pytest.mark.parametrize(
    ("method", "memory_bytes", "words"),
    [
        ("single", 16000, "device a lacks 1650 bytes for the whole model with 4 samples"),
        ("dp", 20449, "device a lacks 1 byte for .*u0 .. u3, 1 samples"),
        ("dp", 20450, "together hold 3 samples of the whole model: they lack 400 bytes"),
        ("pp", 4449, "device a lacks 1 byte for the cheapest segment it could run .u0, 4 samples, 1 micro-"),
        ("pp", 8450, "lacks .* bytes for the cheapest segment"),
    ],
)
def test_a_fleet_that_is_too_small_says_who_lacks_how_much(method: str, memory_bytes: int, words: str) -> None:
    """A unit needs 4000 bytes, 5000 where devices share it, and 100 per kept sample, the runtime 50; every device has
    the same budget."""
    fleet = fleets.fleet(*(fleets.device(name, memory_bytes) for name in "abc"))
    with pytest.raises(Infeasible, match=words):
        solve(method, with_fleet(small(), fleet))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"devices": ["a"], "groups": [["b"]]}, "devices and groups are both given"),
        ({"groups": [["a"], ["a", "b"]]}, "device 'a' is used twice"),
        ({"groups": [[], ["a"]]}, "an empty group"),
        ({"order": "any"}, "order is 'any'; allowed are auto, given, best"),
        ({"warmup": [1, 2, 3]}, "increases towards the last segment"),
    ],
)
def test_options_of_pp_that_contradict_themselves_are_refused(options: dict[str, object], words: str) -> None:
    """Malformed options are refused with a sentence before the search starts."""
    with pytest.raises(Refused, match=words):
        solve("pp", small(**options))


@settings(max_examples=60, deadline=None)
@given(tiny(monotone=False), st.integers(1, 2))
def test_a_group_shares_samples_the_same_for_all_runs_at_once_as_for_each_alone(problem: Problem, kept: int) -> None:
    """The matrix of slowest members holds, run by run, what `shares` gives, and infinity where it gives nothing."""
    group = tuple(times.device for times in problem.profile.times)
    if len(group) > problem.micro_batch_samples:
        return
    costs = SegmentCosts(problem)
    runs = GroupCosts(costs)
    matrix = runs.seconds(group, kept)
    for i, j in combinations(range(costs.blocks + 1), 2):
        shares = runs.shares(group, kept, i, j)
        if shares is None or matrix[i, j] == np.inf:
            assert len(group) == 1 or shares is None and matrix[i, j] == np.inf
            continue
        each = [costs.seconds(device, y)[i, j] for device, y in zip(group, shares, strict=True)]
        assert matrix[i, j] == pytest.approx(max(each), rel=1e-9)


@pytest.mark.parametrize("frozen", [False, True])
def test_planners_count_weights_that_units_share_as_the_clock_does(frozen: bool) -> None:
    """Bug: planners counted an embedding that is also the head twice on a device that has both. What they say that a
    device lacks for a run, and what the clock says that it needs, differ by the workspace and the runtime alone.
    """
    problem, weight = small(), 3_000
    first, *middle, last = problem.profile.units
    named = {"frozen_tied": ("w",)} if frozen else {"tied": ("w",)}
    ends = [
        replace(
            unit,
            param_bytes=unit.param_bytes + weight,
            trainable_bytes=unit.trainable_bytes + (0 if frozen else weight),
            **named,
        )
        for unit in (first, last)
    ]
    sizes = {"shared_bytes": {"w": weight}} if frozen else {"tied_bytes": {"w": weight}}
    profile = replace(problem.profile, units=(ends[0], *middle, ends[1]), **sizes)
    problem = replace(problem, profile=profile)
    costs, clock = SegmentCosts(problem), Clock(problem.fleet, profile)
    device = problem.fleet.devices[0]
    for i, j in combinations(range(costs.blocks + 1), 2):
        held = segment(costs.units(i, j), [(device.name, problem.micro_batch_samples)], 1)
        plan = single_lane_plan("by hand", problem, [held])
        lacks = costs.missing(device.name, problem.micro_batch_samples)[i, j]
        assert lacks == clock.memory_bytes(plan, device.name) - device.memory_bytes
