"""Strategy fusionllm: a fleet and a profile as operators on devices, and the placement as a chain of segments."""

from dataclasses import replace
from itertools import combinations, permutations

import pytest

from fleetune.clock import Clock
from fleetune.contracts.fleet import Fleet, Link
from fleetune.contracts.plan import PlanResult
from fleetune.contracts.profile import Profile
from fleetune.errors import Infeasible, Refused
from fleetune.planning import Problem, solve
from fleetune.planning.strategies.fusionllm import placement_problem
from tests.support.clock import fleets
from tests.support.planning.instances import narrowing, small


def solved(problem: Problem) -> PlanResult:
    """Result of strategy fusionllm."""
    return solve("fusionllm", problem, now=lambda: 0.0)


def two_sites() -> Fleet:
    """Sites of a and b, and of c and d; links between sites have a thousandth of the speed."""
    names = "abcd"
    links = tuple(
        Link(source=x, target=y, latency_s=0.0, bytes_per_s=1e7 if (x in "ab") == (y in "ab") else 1e4)
        for x in names
        for y in names
        if x != y
    )
    return Fleet(devices=tuple(fleets.device(name) for name in names), links=links)


def test_numbers_stand_for_measurements() -> None:
    """Work over speed equals a device's measured seconds; memory by the kind's formula equals a segment's need."""
    problem = small(micro_batches=2)
    posed = placement_problem(problem, ["a", "b", "c"], [0, 1, 3, 4], kept=2, ratio=None)
    assert [operator.name for operator in posed.operators] == ["u0", "u2", "u3"]
    for device, pace in zip(posed.devices, (0.001, 0.002, 0.004), strict=True):
        seconds = [operator.flops / device.flops_per_s for operator in posed.operators]
        assert seconds == pytest.approx([3 * pace * 4.1 * units for units in (1, 2, 1)])
        assert device.memory_bytes == 10**9 - 50
    needed = [2 * op.param_bytes + posed.micro_batches * op.output_bytes for op in posed.operators]
    assert needed == [1000 * n * 4 + 2 * 4 * 100 * n for n in (1, 2, 1)]


def test_many_micro_batches_do_not_fill_memories() -> None:
    """Memory counts the micro-batches that a pipeline keeps, not all 256 as in the kind's formula."""
    tight = fleets.fleet(*(fleets.device(name, 20_000) for name in "abc"))
    problem = replace(small(micro_batches=256), fleet=tight)
    posed = placement_problem(problem, ["a", "b", "c"], [0, 1, 2, 3, 4], kept=7, ratio=None)
    unit = posed.devices[0].memory_bytes / (20_000 - 50)
    needed = [2 * op.param_bytes + 256 * op.output_bytes for op in posed.operators]
    assert [size / unit for size in needed] == pytest.approx([4000 + 7 * 4 * 100] * 4, rel=1e-3)
    assert solved(problem).method == "search"


def test_listed_warmups_count_for_memory() -> None:
    """With twenty micro-batches kept in each of three segments, every plan fits the memories."""
    tight = fleets.fleet(*(fleets.device(name, 14_000) for name in "abc"))
    problem = replace(small(micro_batches=20, warmup=[20, 20, 20]), fleet=tight)
    with pytest.raises(Infeasible, match="lacks"):
        solved(problem)


@pytest.mark.parametrize("warmup", [[1], [2, 1], [3, 2, 1]])
def test_listed_warmups_fix_the_number_of_segments(warmup: list[int]) -> None:
    """Of three devices alike as many take part as warm-ups are listed, each with its own."""
    problem = replace(small(micro_batches=4, warmup=warmup), profile=alike())
    lane = solved(problem).plan.lanes[0]
    assert [segment.warmup for segment in lane.segments] == warmup


def test_listed_warmups_are_planned_on_devices_with_memory() -> None:
    """Where the fastest device has no memory for its part of a chain of two, the two others form it."""
    fleet = fleets.fleet(*(fleets.device(name, 2_000 if name == "a" else 20_000) for name in "abc"))
    plan = solved(replace(small(micro_batches=2, warmup=[2, 1]), fleet=fleet)).plan
    assert set(plan.devices) == {"b", "c"}


def alike() -> Profile:
    """Five units on three devices of the same speed."""
    return fleets.profile([fleets.unit(f"u{k}") for k in range(5)], dict.fromkeys("abc", 0.001))


def test_warmups_for_no_chain_are_told() -> None:
    """More warm-ups than devices are infeasible; none at all and rising ones are refused."""
    with pytest.raises(Infeasible, match="is for more segments than devices fit; list fewer"):
        solved(small(micro_batches=4, warmup=[4, 3, 2, 1]))
    with pytest.raises(Refused, match="warmup lists no segment"):
        solved(small(warmup=[]))
    with pytest.raises(Refused, match="increases towards the last segment"):
        solved(small(micro_batches=4, warmup=[1, 2]))


def test_slow_links_are_crossed_once() -> None:
    """OP-Fence uses all devices and puts those of a site next to each other."""
    units = [fleets.unit(f"u{k}") for k in range(8)]
    profile = fleets.profile(units, dict.fromkeys("abcd", 0.001))
    result = solved(replace(small(method="opfence"), fleet=two_sites(), profile=profile))
    order = [segment.devices[0] for segment in result.plan.lanes[0].segments]
    assert sorted(order) == ["a", "b", "c", "d"]
    assert {frozenset(order[:2]), frozenset(order[2:])} == {frozenset("ab"), frozenset("cd")}


def test_the_search_is_near_the_best_chain() -> None:
    """A plan optimised by eq. (3) is within 15 % of the best contiguous chain by the clock."""
    problem = small(micro_batches=6)
    result, clock = solved(problem), Clock(problem.fleet, problem.profile)
    rounds = []
    for count in (1, 2, 3):
        for devices in permutations("abc", count):
            for cuts in combinations(range(1, 4), count - 1):
                edges = [0, *cuts, 4]
                names = [" ".join(f"u{k}" for k in range(a, b)) for a, b in zip(edges, edges[1:], strict=False)]
                warm = [2 * (count - p) - 1 for p in range(count)]
                chain = [(units, {d: 4}, k) for units, d, k in zip(names, devices, warm, strict=True)]
                rounds.append(clock.round_s(fleets.plan(*chain, micro_batches=6)))
    assert min(rounds) <= result.objective <= 1.15 * min(rounds)


def test_where_memory_tears_a_placement_chains_are_tried() -> None:
    """If a device's operators are not contiguous, the plan is still a contiguous chain that fits."""
    segments = solved(narrowing()).plan.lanes[0].segments
    names = [name for segment in segments for name in segment.units]
    assert names == [unit.name for unit in narrowing().profile.units]
    assert len({segment.devices for segment in segments}) == len(segments)


def test_a_fast_device_without_memory_leaves_the_others_a_plan() -> None:
    """Bug: chains were tried of the fastest devices only, of which the first one fits an idle worker and no unit."""
    room = {"a": 60, "b": 10**9, "c": 10**9}
    problem = replace(small(), fleet=fleets.fleet(*(fleets.device(name, size) for name, size in room.items())))
    assert "a" not in solved(problem).plan.devices
    one = {"a": 60, "b": 60, "c": 10**9}
    problem = replace(small(), fleet=fleets.fleet(*(fleets.device(name, size) for name, size in one.items())))
    assert solved(problem).plan.devices == ("c",)


def test_segments_that_would_sum_the_gradients_of_shared_weights_are_joined() -> None:
    """As strategy asteroid does: an embedding tied to its head keeps the model on one device."""
    problem = small(micro_batch_samples=8, micro_batches=6)
    big = replace(fleets.UNITS[0], param_bytes=2_000_000, trainable_bytes=2_000_000, tied=("w",))
    units = (big, *fleets.UNITS[1:3], replace(big, name="u3"))
    untied = replace(problem, profile=replace(fleets.PROFILE, units=units))
    tied = replace(problem, profile=replace(fleets.PROFILE, units=units, tied_bytes={"w": 2_000_000}))
    assert len(solved(untied).plan.lanes[0].segments) > 1 and len(solved(tied).plan.lanes[0].segments) == 1


def test_missing_memory_names_block_and_device() -> None:
    """A model that fits no device is infeasible."""
    tight = fleets.fleet(*(fleets.device(name, 3000) for name in "abc"))
    with pytest.raises(Infeasible, match="device a lacks .* for the cheapest segment it could run .u0"):
        solved(replace(small(), fleet=tight))
    with pytest.raises(Infeasible, match="device a lacks 10 bytes for an idle worker"):
        solved(replace(small(), fleet=fleets.fleet(*(fleets.device(name, 40) for name in "abc"))))
    with pytest.raises(Infeasible, match="method equal-modules: device . lacks .*choose method search, which respects"):
        solved(replace(small(method="equal-modules"), fleet=fleets.fleet(*(fleets.device(n, 5500) for n in "abc"))))


def test_an_unknown_method_is_refused() -> None:
    """An unknown method is refused with the list of known ones."""
    with pytest.raises(Refused, match="'magic' is not known; allowed are search, opfence, equal-modules"):
        solved(small(method="magic"))
