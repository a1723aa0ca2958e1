"""Plans after the loss of devices: what stays, what moves, and how good they are."""

from dataclasses import replace
from itertools import combinations, pairwise

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from fleetune.checks import validate
from fleetune.clock import Clock
from fleetune.contracts.plan import Plan
from fleetune.errors import Infeasible, Refused
from fleetune.planning import Problem, solve
from fleetune.planning.plan_result import segment, single_lane_plan
from fleetune.planning.recut import recut
from fleetune.planning.revision import (
    MIN_GAIN,
    Copy,
    Reviser,
    around,
    copies,
    heavy,
    light,
    with_paces,
    without_devices,
)
from fleetune.planning.segment_costs import Group, GroupCosts, SegmentCosts
from tests.support.planning.instances import five, lora, needy, scored, small, tiny


def chain(problem: Problem, *segments: tuple[int, Group]) -> Plan:
    """A chain whose segments have so many units, on so many devices with even shares."""
    units, made, at = problem.profile.units, [], 0
    for count, group in segments:
        each = problem.micro_batch_samples // len(group)
        shares = [(device, each) for device in group]
        made.append(segment(units[at : at + count], shares, 2 * (len(segments) - len(made)) - 1))
        at += count
    return single_lane_plan("pp", problem, made)


def placed(plan: Plan) -> list[tuple[Group, int]]:
    """Devices and number of units of each segment."""
    return [(segment.devices, len(segment.units)) for segment in plan.lanes[0].segments]


def test_a_lost_segment_is_taken_over_by_its_neighbours() -> None:
    """Of a chain a, b, c without b the others keep their order, and cut the units in proportion to their speed."""
    problem = small()
    before = chain(problem, (2, ("a",)), (1, ("b",)), (1, ("c",)))
    found = light(problem, before, ["b"])
    assert [group for group, _ in placed(found.plan)] == [("a",), ("c",)]
    rounds = {cut: Clock(problem.fleet, problem.profile).round_s(chain(problem, (cut, ("a",)), (4 - cut, ("c",))))
              for cut in (1, 2, 3)}  # fmt: skip
    assert found.objective == min(rounds.values()), rounds
    assert found.method == "light" and found.lower_bound <= found.objective


def test_a_device_that_the_plan_does_not_use_takes_part_where_rounds_are_faster() -> None:
    """Of b and c, with a beside them, b is lost: the faster of both kinds of plan is taken, unless a is not there."""
    problem = small()
    before = chain(problem, (2, ("b",)), (2, ("c",)))
    light_s, heavy_s = (each(problem, before, ["b"]).objective for each in (light, heavy))
    assert heavy_s < light_s, "a is worth it"
    found = Reviser(problem=problem)(before, ["b"])
    assert found.objective == heavy_s and "a" in found.plan.devices
    assert Reviser(problem=problem)(before, ["b", "a"]).plan.devices == ("c",)


def test_a_group_shares_what_a_lost_member_leaves() -> None:
    """Data parallelism on a, b, c without a: the same segment, all samples on b and c, the faster with more."""
    problem = small(micro_batch_samples=6)
    found = light(problem, chain(problem, (4, ("a", "b", "c"))), ["a"])
    (only,) = found.plan.lanes[0].segments
    shares = {share.device: share.samples for share in only.shares}
    assert sum(shares.values()) == 6 and shares["b"] > shares["c"] >= 1


def test_only_what_a_device_did_not_run_is_copied() -> None:
    """A unit that stays on its device is no copy; one that a device did not run before is, for each of its devices."""
    problem = small()
    names = [unit.name for unit in problem.profile.units]
    before = chain(problem, (2, ("a",)), (2, ("b",)))
    after = chain(problem, (1, ("a",)), (3, ("b", "c")))
    lane = before.lanes[0].name
    assert list(copies(before, after)) == [
        Copy("b", lane, names[1]),
        *(Copy("c", lane, name) for name in names[1:]),
    ]
    assert list(copies(before, before)) == []


def test_losses_that_no_plan_survives() -> None:
    """Errors name what was lost and what to do: all devices, all that the plan used, a device that is not there."""
    problem = small()
    plan = chain(problem, (4, ("a",)))
    with pytest.raises(Infeasible, match="all devices were lost"):
        light(problem, plan, ["a", "b", "c"])
    with pytest.raises(Infeasible, match=r"no other device than a.*heavy"):
        light(problem, plan, ["a"])
    with pytest.raises(Refused, match="no device 'x'"):
        light(problem, plan, ["x"])
    lanes = solve("split-learning", small(clients=["b", "c"], helpers=["a"])).plan
    with pytest.raises(Refused, match="no single chain"):
        light(problem, lanes, ["b"])


def test_the_same_strategy_plans_anew() -> None:
    """`heavy` has the strategy's own plan for the fleet that is left; options forget the lost device."""
    problem = small(devices=["a", "b", "c"])
    before = solve("pp", problem).plan
    left = without_devices(problem, ["c"])
    assert left.options == {"devices": ["a", "b"]}
    found = heavy(problem, before, ["c"])
    assert found.plan == solve("pp", small(devices=["a", "b"])).plan


def test_a_device_that_an_option_named_alone_is_forgotten() -> None:
    """`single` on a goes to the fastest that is left; a named server that is lost is chosen anew; a unit with the name
    of a device stays among the cuts."""
    problem = small(device="a")
    found = Reviser(problem=problem)(solve("single", problem).plan, ["a"])
    assert found.plan.devices == ("b",) and found.options == {}
    assert without_devices(small(server="a", blocks=1), ["a"]).options == {"blocks": 1}
    assert without_devices(small(server="a"), ["b"]).options == {"server": "a"}
    assert without_devices(small(cuts=["c", "d"], compression="c"), ["c"]).options == {
        "cuts": ["c", "d"],
        "compression": "c",
    }


@pytest.mark.parametrize(
    ("options", "lost", "kept"),
    [
        ({"warmup": [3, 2, 1]}, "a", False),
        ({"warmup": [2, 1]}, "a", True),
        ({"warmup": "P-p"}, "a", True),
        ({"warmup": [2, 1], "devices": ["a", "b"]}, "a", False),
        ({"warmup": [2, 1], "groups": [["a", "b"], ["c"]]}, "a", True),
        ({"warmup": [2, 1], "groups": [["a", "b"], ["c"]]}, "c", False),
    ],
)
def test_warmups_stay_as_long_as_there_may_be_so_many_segments(
    options: dict[str, object], lost: str, kept: bool
) -> None:
    """Listed warm-ups of more segments than devices or groups are left make way for the default policy."""
    assert ("warmup" in without_devices(small(**options), [lost]).options) == kept


@pytest.mark.parametrize("lost", ["a", "b", "c"])
def test_a_pipeline_with_listed_warmups_survives_a_loss(lost: str) -> None:
    """Compressed links belong to their devices, so the plan is made anew: of at most two segments, whose warm-ups are
    no longer the listed ones."""
    problem = small(micro_batch_samples=1, micro_batches=6, warmup=[3, 2, 1], compression="int8")
    before = solve("asteroid", problem).plan
    assert len(before.lanes[0].segments) == 3
    found = heavy(problem, before, [lost])
    assert lost not in found.plan.devices and "warmup" not in found.options


def test_a_lost_helpers_clients_go_to_the_others_and_keep_their_parts() -> None:
    """Of helpers h and i each may be lost: all clients go to the other one, and their own parts, micro-batches and
    averages stay. Where no helper is left, the clients run the whole model."""
    problem = five(micro_batches=2, average_every_rounds=7, least_micro_batches=1)
    before = solve("split-learning", problem).plan
    assert {lane.segments[1].devices[0] for lane in before.lanes} == {"h", "i"}
    for lost, left in (("h", "i"), ("i", "h")):
        found = Reviser(problem=problem)(before, [lost])
        assert found.method == "own" and found.plan.average_every_rounds == 7
        assert {lane.segments[1].devices for lane in found.plan.lanes} == {(left,)}
        for old, new in zip(before.lanes, found.plan.lanes, strict=True):
            assert [s.units for s in old.segments] == [s.units for s in new.segments]
            assert (old.segments[0], old.micro_batches) == (new.segments[0], new.micro_batches)
    alone = Reviser(problem=problem)(before, ["h", "i"])
    assert [[s.devices for s in lane.segments] for lane in alone.plan.lanes] == [[("x",)], [("y",)], [("z",)]]
    assert [lane.micro_batches for lane in alone.plan.lanes] == [lane.micro_batches for lane in before.lanes]


def test_clients_go_on_alone_where_the_helper_that_is_left_has_no_memory_for_all() -> None:
    """Bug: with one small helper left the training ended, and with none it went on."""
    problem = five(micro_batches=2)
    before = solve("split-learning", problem).plan
    devices = tuple(replace(d, memory_bytes=20_000 if d.name == "i" else 10**9) for d in problem.fleet.devices)
    small_i = replace(problem, fleet=replace(problem.fleet, devices=devices))
    found = Reviser(problem=small_i)(before, ["h"]).plan
    assert [[s.devices for s in lane.segments] for lane in found.lanes] == [[("x",)], [("y",)], [("z",)]]
    none = replace(
        problem, fleet=replace(problem.fleet, devices=tuple(replace(d, memory_bytes=20_000) for d in devices))
    )
    with pytest.raises(Infeasible, match="i lacks|helpers are 0 i"):
        Reviser(problem=none)(before, ["h"])


def test_links_of_a_revised_plan_are_compressed_as_the_options_ask() -> None:
    """Bug: a plan that needed no codec was followed by one without, also where its new cut crosses a slow link: only
    cut points were changed."""
    links = tuple(
        replace(link, latency_s=0.0, bytes_per_s=1e3 if {link.source, link.target} == {"a", "c"} else 1e9)
        for link in small().fleet.links
    )
    problem = small(compression="int8", method="equal-modules")
    problem = replace(problem, fleet=replace(problem.fleet, links=links))
    before = chain(problem, (2, ("a",)), (1, ("b",)), (1, ("c",)))
    before = replace(before, strategy="fusionllm")
    found = Reviser(problem=problem)(before, ["b"]).plan
    assert {(use.source, use.target) for use in found.links if use.codec == "int8"} >= {("a", "c"), ("c", "a")}


def test_no_client_with_data_averages_for_the_others() -> None:
    """The plan names a helper, with which fewest units cross, also after the other one is lost; where no helper is left
    nothing goes on, though without local data it would. LoLa-DEFT's server has no data either.
    """
    problem = replace(five(micro_batches=2), owners=("x", "y", "z"))
    before = solve("split-learning", problem).plan
    assert before.averager in ("h", "i") and not solve("split-learning", replace(problem, owners=())).plan.averager
    for lost, left in (("h", "i"), ("i", "h")):
        assert Reviser(problem=problem)(before, [lost]).plan.averager == left
    with pytest.raises(Infeasible, match="has data of its own and would receive what all others train"):
        Reviser(problem=problem)(before, ["h", "i"])
    owned = replace(lora(server="a"), owners=("b", "c"))
    served = solve("lola-deft", owned).plan
    assert Reviser(problem=owned)(served, ["a"]).plan.collector == "d"
    with pytest.raises(Infeasible, match="has data of its own and would receive what all others train"):
        Reviser(problem=owned)(served, ["a", "d"])


def test_a_lost_clients_lane_ends() -> None:
    """The other lanes stay, also if the fastest client is lost, which the others' micro-batches were fewer than."""
    problem = five(micro_batches=3, least_micro_batches=1)
    before = solve("split-learning", problem).plan
    assert [lane.micro_batches for lane in before.lanes] == [0, 2, 1]
    found = Reviser(problem=problem)(before, ["x"])
    assert [(lane.name, lane.micro_batches) for lane in found.plan.lanes] == [("y", 2), ("z", 1)]
    with pytest.raises(Infeasible, match=r"all clients were lost \(x, y, z\)"):
        Reviser(problem=problem)(before, ["x", "y", "z"])


@pytest.mark.parametrize("role", ["device", "server"])
def test_blocks_of_a_lost_device_are_joined_to_the_others(role: str) -> None:
    """LoLa-DEFT: every trained unit is trained by exactly one of the lanes that are left, which keep their names and
    devices; a device becomes the server if that was lost."""
    problem = lora(server="a")
    before = solve("lola-deft", problem).plan
    devices = {lane.name: lane.segments[0].devices for lane in before.lanes}
    gone = "a" if role == "server" else before.lanes[0].segments[0].devices[0]
    found = Reviser(problem=problem)(before, [gone]).plan
    assert found.lanes and all(devices[lane.name] == lane.segments[0].devices for lane in found.lanes)
    assert gone not in found.devices and (found.collector == "a") == (role == "device")
    trained = [unit for lane in found.lanes for unit in lane.segments[0].trained]
    assert sorted(trained) == sorted(u.name for u in problem.profile.units if u.trainable_bytes)


@pytest.mark.parametrize("name", ["d2ft", "fusionllm"])
def test_strategies_without_lanes_plan_anew_where_cut_points_are_not_all(name: str) -> None:
    """Gates and links with codecs belong to the devices that they were chosen for."""
    options: dict[str, object] = {"compression_ratio": 10.0} if name == "fusionllm" else {}
    problem = scored(small(**options))
    before = solve(name, problem).plan
    assert before.gates or before.links or before.devices == ("a",)
    found = Reviser(problem=problem)(before, ["a"])
    assert found.plan.strategy == name and "a" not in found.plan.devices


def test_a_group_leaves_units_to_one_that_could_not_compute_what_follows() -> None:
    """Bug: b takes nine times as long for the third of four units. A limit of two units' time let a take two, so that b
    had to begin with the third; cuts with a slowest segment of nine units' time were found, where b takes the second
    unit and c the others."""
    problem, unit_s = small(), 0.01
    slow = {("b", 2): 9 * unit_s}
    times = tuple(
        replace(
            each,
            forward_s=tuple((slow.get((each.device, k), unit_s),) * len(problem.profile.batch_sizes) for k in range(4)),
            backward_s=((0.0,) * len(problem.profile.batch_sizes),) * 4,
        )
        for each in problem.profile.times
    )
    problem = replace(problem, profile=replace(problem.profile, times=times))
    found = recut("pp", SegmentCosts(problem), (("a",), ("b",), ("c",)), "2(P-p)-1")
    assert placed(found) == [(("a",), 1), (("b",), 1), (("c",), 2)]


@settings(max_examples=300, deadline=None)
@given(data=st.data(), problem=st.one_of(tiny(devices=4), needy(devices=4)))
def test_cuts_are_as_good_as_any(data: st.DataObject, problem: Problem) -> None:
    """Of all cuts of groups in an order that give each device the samples that its units need, none has a faster
    slowest segment; what is found fits and is valid, and where there are none, the error says what is missing.

    The clock may prefer cuts with a slowest segment that takes up to a tenth longer.
    """
    names = [device.name for device in problem.fleet.devices]
    assume(len(names) > 1)
    order = data.draw(st.permutations(names))
    count = data.draw(st.integers(1, len(names)))
    bounds = [0, *sorted(data.draw(st.permutations(range(1, len(names))))[: count - 1]), len(names)]
    groups = tuple(tuple(order[first:end]) for first, end in pairwise(bounds))
    assume(all(len(group) <= problem.micro_batch_samples for group in groups))  # as in any plan
    costs = SegmentCosts(problem)
    runs = GroupCosts(costs)
    kept = [min(2 * (count - p) - 1, problem.micro_batches) for p in range(count)]

    def slowest_s(edges: tuple[int, ...]) -> float:
        spans = list(pairwise(edges))
        if any(
            len(g) * costs.least_samples(*span) > problem.micro_batch_samples
            for g, span in zip(groups, spans, strict=True)
        ):
            return float("inf")
        return max(float(runs.seconds(groups[p], kept[p])[run]) for p, run in enumerate(spans))

    all_cuts = [(0, *inner, costs.blocks) for inner in combinations(range(1, costs.blocks), count - 1)]
    least_s = min(map(slowest_s, all_cuts), default=float("inf"))
    if least_s == float("inf"):
        with pytest.raises(Infeasible, match="lacks|needs at least|cannot share the samples|pieces"):
            recut("pp", costs, groups, "2(P-p)-1")
        return
    found = recut("pp", costs, groups, "2(P-p)-1")
    validate(found, problem.fleet, problem.profile)
    places = {problem.profile.units[end - 1].name: edge for edge, end in enumerate(costs.edges) if edge}
    edges = (0, *(places[one.units[-1]] for one in found.lanes[0].segments))
    assert slowest_s(edges) <= least_s * 1.11


def test_a_straggler_is_given_less_work() -> None:
    """The order of the groups stays; the slow device's units go to its neighbours."""
    problem = small()
    before = light(problem, chain(problem, (2, ("a",)), (1, ("b",)), (1, ("c",))), [])
    found = around(problem, before.plan, [], {"a": 20.0})
    slowed = with_paces(problem, {"a": 20.0})
    present_s = Clock(slowed.fleet, slowed.profile).round_s(before.plan)
    assert found.objective == Clock(slowed.fleet, slowed.profile).round_s(found.plan) < (1 - MIN_GAIN) * present_s
    assert dict(placed(found.plan))[("a",)] <= dict(placed(before.plan))[("a",)]
    assert [group for group, _ in placed(found.plan)] == [("a",), ("b",), ("c",)]


def test_without_a_better_plan_nothing_changes_for_a_straggler() -> None:
    """Noise moves no weights; a loss is planned for in any case."""
    problem = small()
    before = light(problem, chain(problem, (2, ("a",)), (1, ("b",)), (1, ("c",))), [])
    with pytest.raises(Infeasible, match="no other plan shortens the round of .* s by 10%; the best takes "):
        around(problem, before.plan, [], {"a": 1.0})
    assert [group for group, _ in placed(around(problem, before.plan, ["b"], {"a": 1.0}).plan)] == [("a",), ("c",)]
    must = around(problem, before.plan, [], {"a": 1.0}, must=True)
    assert must.objective == before.objective, "where another plan runs, this one is worth it"
