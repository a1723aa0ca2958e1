"""Strategy lola-deft: blocks, bandwidth and their rounds by the clock."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import permutations

import pytest

from fleetune.checks import findings
from fleetune.clock import Clock, forecast
from fleetune.contracts.plan import LinkUse, Plan, PlanResult
from fleetune.contracts.profile import PartialPasses
from fleetune.contracts.training_request import ALWAYS, NEVER
from fleetune.errors import Infeasible, Refused
from fleetune.planning import Problem, solve
from fleetune.planning.recompute import everywhere
from tests.support.clock import fleets
from tests.support.planning.instances import lora


def partly(problem: Problem) -> Problem:
    """The same with measured parts of backwards."""
    measured = PartialPasses(below=(0.8,) * 5, passed=(0.5,) * 5, lowest=(0.7,) * 5)
    times = tuple(replace(each, partial=measured) for each in problem.profile.times)
    return replace(problem, profile=replace(problem.profile, times=times))


def solved(problem: Problem) -> PlanResult:
    """Result of strategy lola-deft."""
    return solve("lola-deft", problem, now=lambda: 0.0)


def test_every_lane_is_the_whole_model_and_trains_one_block() -> None:
    """Block 0 is the last one with the head; the deeper one goes to the faster device; a collects."""
    plan = solved(lora(server="a")).plan
    assert [lane.name for lane in plan.lanes] == ["block-0", "block-1"]
    assert [len(lane.segments[0].units) for lane in plan.lanes] == [5, 5]
    assert plan.lanes[0].segments[0].trains == ("layer.1.query", "layer.1.output", "head")
    assert plan.lanes[1].segments[0].trains == ("layer.0.query", "layer.0.output")
    assert plan.lanes[1].segments[0].devices == ("b",)
    assert plan.collector == "a"
    assert sum(use.share for use in plan.links) == pytest.approx(1.0)


def test_equal_parts_of_the_medium() -> None:
    """With `bandwidth: equal` each of two blocks gets half."""
    assert [use.share for use in solved(lora(bandwidth="equal")).plan.links] == [0.5, 0.5]


def test_the_clock_counts_both_passes_and_the_upload() -> None:
    """c alone: two passes of 5 forwards and 3 backwards (head and last block) of 4.1 paces of 4 ms, backwards double,
    then 300 bytes at 10 kB/s; before it, as many bytes of parameters come, and a millisecond passes on each way."""
    problem = lora(server="a", devices=["c"], blocks=1)
    plan = solved(problem).plan
    lane = plan.lanes[0]
    only_last = replace(lane, segments=(replace(lane.segments[0], trains=("layer.1.query", "layer.1.output", "head")),))
    said = forecast(replace(plan, lanes=(only_last,)), problem.fleet, problem.profile)
    passes_s = 2 * (5 + 2 * 3) * 0.004 * 4.1
    assert said.round_s == pytest.approx(0.03 + 0.001 + passes_s + 0.03 + 0.001, abs=1e-8)


def plans(result: PlanResult, names: str) -> Iterator[Plan]:
    """All assignments of blocks to devices with several divisions of the bandwidth."""
    lanes = result.plan.lanes
    for dealt in permutations(names, len(lanes)):
        for share in (0.1, 0.3, 0.5, 0.7, 0.9):
            moved = tuple(
                replace(lane, segments=(replace(s := lane.segments[0], shares=(replace(s.shares[0], device=name),)),))
                for lane, name in zip(lanes, dealt, strict=True)
            )
            links = tuple(
                LinkUse(source=name, target="a", share=part)
                for name, part in zip(dealt, (share, 1 - share), strict=True)
            )
            yield replace(result.plan, lanes=moved, links=links)


@pytest.mark.parametrize("trained", [10, 1000, 20_000])
def test_no_other_plan_passes_the_bound(trained: int) -> None:
    """The bound holds for every assignment and division; the plan exceeds the best only by the server's broadcast."""
    problem = lora(min(trained, 10_000), server="a")
    result, clock = solved(problem), Clock(problem.fleet, problem.profile)
    best_s = min(clock.round_s(plan) for plan in plans(result, "bcd"))
    handed_out_s = sum(unit.trainable_bytes for unit in problem.profile.units) * 2 / 1e4 + 0.002
    assert result.lower_bound is not None and result.lower_bound <= best_s
    assert result.objective <= best_s + handed_out_s


@pytest.mark.parametrize("trained", [10, 10_000])
def test_the_bound_holds_where_backwards_are_needed_in_part(trained: int) -> None:
    """Passed units take half of their backwards: b, which trains the deeper block, takes 2 and 3 halves for a backward,
    each of twice 4.1 paces of 2 ms."""
    problem = lora(trained, server="a")
    parts = partly(problem)
    result, clock = solved(parts), Clock(parts.fleet, parts.profile)
    deeper = next(lane for lane in result.plan.lanes if lane.segments[0].trains[0] == "layer.0.query")
    assert deeper.segments[0].devices == ("b",)
    rows = forecast(result.plan, parts.fleet, parts.profile).rows
    busy = [row.end_s - row.start_s for row in rows if row.device == "b" and row.action[-2:] == "B0"]
    assert busy == [pytest.approx(3.5 * 2 * 4.1 * 0.002)]
    best_s = min(clock.round_s(plan) for plan in plans(result, "bcd"))
    assert result.lower_bound is not None and result.lower_bound <= best_s
    assert best_s < min(Clock(problem.fleet, problem.profile).round_s(plan) for plan in plans(result, "bcd"))


def test_blocks_are_joined_where_devices_are_few() -> None:
    """Two requested blocks on one device become one."""
    plan = solved(lora(server="a", devices=["b"])).plan
    assert len(plan.lanes) == 1 and len(plan.lanes[0].segments[0].trains) == 5


@pytest.mark.parametrize(
    ("options", "kind", "said"),
    [
        ({"server": "a", "devices": ["a", "b"]}, Refused, "a is the server and one of the devices"),
        ({"server": "a", "devices": ["b"], "blocks": 2}, Infeasible, "2 blocks need 2 devices beside the server"),
        ({"blocks": 3}, Refused, "blocks is 3; the model has 2 that are trained"),
        ({"bandwidth": "most"}, Refused, "bandwidth is 'most'; allowed are joint, equal"),
        ({"method": "magic"}, Refused, "method: 'magic' is not known"),
        ({"method": "dual-ascent", "bandwidth": "equal"}, Refused, "dual-ascent"),
    ],
)
def test_what_cannot_be_is_refused(options: dict[str, object], kind: type[Exception], said: str) -> None:
    """Malformed options are refused with the strategy's name."""
    with pytest.raises(kind, match=said):
        solved(lora(**options))


def test_missing_memory_names_block_and_device() -> None:
    """If no device has memory for the frozen model, the error names one."""
    problem = lora(server="a")
    tight = fleets.fleet(*(fleets.device(name, 10**9 if name == "a" else 20_000) for name in "abcd"), bytes_per_s=1e4)
    with pytest.raises(Infeasible, match="block.*devices are 0 b, 1 c, 2 d"):
        solved(replace(problem, fleet=tight))


def test_models_without_anything_to_train_are_refused() -> None:
    """Unsupported fleets and models are refused before planning."""
    with pytest.raises(Refused, match="no unit of the model is trained"):
        solved(lora(0))


def test_fewer_blocks_where_memory_leaves_fewer_devices() -> None:
    """If only b can hold the model it tunes both blocks as one; two requested blocks are infeasible."""
    problem = lora(server="a")
    tight = fleets.fleet(*(fleets.device(n, 10**9 if n in "ab" else 20_000) for n in "abcd"), bytes_per_s=1e4)
    plan = solved(replace(problem, fleet=tight)).plan
    assert [lane.segments[0].devices for lane in plan.lanes] == [("b",)]
    with pytest.raises(Infeasible, match="make smaller blocks; or name other devices or another server"):
        solved(replace(lora(server="a", blocks=2), fleet=tight))


def test_a_server_is_found_among_all_devices() -> None:
    """If all devices are named and none is the server, the one with the shortest round becomes the server, and no
    other one's plan beats the bound."""
    result = solved(lora(devices=["a", "b", "c", "d"]))
    rounds = {
        name: solved(lora(server=name, devices=[each for each in "abcd" if each != name])).objective for name in "abcd"
    }
    assert result.objective == min(rounds.values()) and result.plan.collector == min(rounds, key=rounds.__getitem__)
    assert result.plan.collector not in {lane.segments[0].devices[0] for lane in result.plan.lanes}
    assert result.lower_bound is not None and 0 < result.lower_bound <= min(rounds.values())


def with_rates(problem: Problem, bytes_per_s: dict[str, float], memory: dict[str, int]) -> Problem:
    """The problem with links into each device as given, and with memories; 10 kB/s and a GB where none is."""
    fleet = problem.fleet
    devices = tuple(replace(each, memory_bytes=memory.get(each.name, 10**9)) for each in fleet.devices)
    links = tuple(replace(link, bytes_per_s=bytes_per_s.get(link.target, 1e4)) for link in fleet.links)
    return replace(problem, fleet=replace(fleet, devices=devices, links=links))


def test_a_server_leaves_the_others_memory_for_the_model() -> None:
    """Only a can hold the model, so a tunes, although it is reached fastest; the server holds what is trained only."""
    problem = with_rates(lora(), {"a": 1e6}, dict.fromkeys("bcd", 20_000))
    plan = solved(problem).plan
    assert [lane.segments[0].devices for lane in plan.lanes] == [("a",)] and plan.collector in "bcd"


def test_a_server_without_memory_for_what_it_collects_is_not_chosen() -> None:
    """d is reached fastest and lacks memory for the optimizer state of all blocks."""
    assert solved(with_rates(lora(), {"d": 1e6}, {"d": 900})).plan.collector != "d"


def test_more_blocks_are_worth_a_longer_round() -> None:
    """With server a the one other device that holds the model would tune all of it; a tunes a block itself."""
    problem = with_rates(lora(), {"a": 1e6}, dict.fromkeys("cd", 20_000))
    plan = solved(problem).plan
    assert {lane.segments[0].devices for lane in plan.lanes} == {("a",), ("b",)} and plan.collector in "cd"


@pytest.mark.parametrize("order", ["abcd", "dcba", "bdac"])
def test_the_server_does_not_depend_on_the_order_of_the_fleet(order: str) -> None:
    """Of servers with equal rounds the first by name is taken, wherever it is in the fleet's file."""
    problem = lora()
    paces = dict.fromkeys("abcd", 0.001)
    devices = tuple(problem.fleet.device(name) for name in order)
    alike = replace(
        problem,
        fleet=replace(problem.fleet, devices=devices),
        profile=fleets.profile(list(problem.profile.units), paces),
    )
    assert solved(alike).plan.collector == "a"


def test_of_many_servers_the_likeliest_are_tried() -> None:
    """In a fleet of 40 the bound also holds for servers that were not tried."""
    names = [f"d{number:02}" for number in range(40)]
    paces = {name: 0.001 * (1 + number % 7) for number, name in enumerate(names)}
    many = replace(
        lora(1000),
        fleet=fleets.fleet(*(fleets.device(name) for name in names), bytes_per_s=1e4),
        profile=fleets.profile(list(lora(1000).profile.units), paces),
    )
    result = solved(many)
    rounds = [solved(replace(many, options={"server": name})).objective for name in names]
    assert result.objective == min(rounds)
    assert result.lower_bound is not None and 0 < result.lower_bound <= min(rounds)


def test_devices_with_data_of_their_own_tune_the_blocks() -> None:
    """The server is one of the others, though the fastest has data; a device without data may tune nothing."""
    plan = solved(replace(lora(), owners=("a", "c"))).plan
    assert plan.collector in ("b", "d")
    assert {lane.segments[0].devices for lane in plan.lanes} == {("a",), ("c",)}
    some = solved(replace(lora(devices=["a", "b"]), owners=("a", "b", "c"))).plan
    assert some.collector == "d", "c has data, too, and would receive what the others train"
    with pytest.raises(Refused, match="begins on d, which has no data"):
        solved(replace(lora(devices=["c", "d"]), owners=("a", "c")))


def tied(names: list[str]) -> Problem:
    """`lora`, whose units have other names; the first one shares a weight of 60 bytes with the last one."""
    problem = lora(server="a")
    ends = (0, len(names) - 1)
    units = tuple(
        replace(unit, name=name, tied=("w",) if k in ends else ())
        for k, (name, unit) in enumerate(zip(names, problem.profile.units, strict=True))
    )
    return replace(problem, profile=replace(problem.profile, units=units, tied_bytes={"w": 60}))


def test_a_block_sends_what_its_lane_trains() -> None:
    """Bug: a head of 100 bytes that belongs to the lower block was counted as sent by both: two blocks of 200 bytes
    each, though lanes send 100 and 240, over a medium of 10 bytes a second."""
    problem = tied(["wte", "layer.0.output", "layer.1.query", "layer.1.output", "head"])
    sizes = (100, 100, 50, 50, 100)
    units = tuple(replace(unit, trainable_bytes=size) for unit, size in zip(problem.profile.units, sizes, strict=True))
    slow = replace(problem.fleet, links=tuple(replace(each, bytes_per_s=10.0) for each in problem.fleet.links))
    problem = replace(problem, fleet=slow, profile=replace(problem.profile, units=units))
    result = solved(problem)
    assert result.lower_bound is not None and result.lower_bound < result.objective
    assert result.lower_bound < (200 + 200) / 10


@pytest.mark.parametrize("recompute", [NEVER, ALWAYS])
def test_the_bound_knows_who_trains_a_weight_of_two_blocks(recompute: str) -> None:
    """Bug: the problem counted a shared head as trained by the upper block's device and as passed by the other, the
    plan the other way round, so that the plan came out below its own bound."""
    problem = partly(tied(["wte", "layer.0.output", "layer.1.query", "layer.1.output", "head"]))
    result = solved(replace(problem, recompute=recompute))
    assert result.lower_bound is not None and result.lower_bound < result.objective
    best_s = min(
        Clock(problem.fleet, problem.profile).round_s(everywhere(plan, recompute=recompute == ALWAYS))
        for plan in plans(result, "bcd")
    )
    assert result.lower_bound <= best_s


def test_a_weight_that_two_blocks_share_belongs_to_the_lower_one() -> None:
    """Only its backward passes both uses; the device of the upper block trains the rest of that, and a plan by hand in
    which it trains the head as well is refused.
    """
    problem = tied(["wte", "layer.0.output", "layer.1.query", "layer.1.output", "head"])
    plan = solved(problem).plan
    upper, lower = plan.lanes
    assert upper.segments[0].trains == ("layer.1.query", "layer.1.output")
    assert lower.segments[0].trains == ("wte", "layer.0.output", "head")
    swapped = replace(upper, segments=(replace(upper.segments[0], trains=("layer.1.output", "head")),))
    (said,) = findings(replace(plan, lanes=(swapped, lower)), problem.fleet, problem.profile)
    assert said == (
        "segment block-0/0 trains head, whose weight is that of wte, too, which its backward does not reach; train wte "
        "too, or leave head out"
    )


def test_a_block_that_is_nothing_but_a_shared_weight_is_refused() -> None:
    """Its lane would train nothing, which a plan would read as everything."""
    problem = tied(["a", "b", "c", "d", "e"])
    problem = replace(problem, options={"server": "a", "blocks": 3})
    few = tuple(
        replace(unit, trainable_bytes=unit.trainable_bytes if unit.name in "ace" else 0)
        for unit in problem.profile.units
    )
    with pytest.raises(Refused, match="a block of e alone shares its weight with a lower block; ask for fewer blocks"):
        solved(replace(problem, profile=replace(problem.profile, units=few)))
