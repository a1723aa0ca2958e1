"""Strategy split-learning: roles, cuts, orders and their rounds by the clock."""

from dataclasses import replace
from itertools import permutations, product

import pytest

from fleetune.clock import Clock
from fleetune.contracts.plan import PlanResult, actions_of
from fleetune.errors import Infeasible, Refused
from fleetune.planning import Problem, solve
from fleetune.planning.revision import own
from fleetune.planning.strategies.split_learning import SplitLearning
from tests.support.clock import fleets
from tests.support.planning.instances import five, small


def solved(problem: Problem) -> PlanResult:
    """Result of strategy split-learning."""
    return solve("split-learning", problem, now=lambda: 0.0)


def test_clients_keep_both_ends_and_helpers_the_middle() -> None:
    """Every client has a lane whose first and last segments are on the client and whose middle is on a helper."""
    plan = solved(five()).plan
    assert [lane.name for lane in plan.lanes] == ["x", "y", "z"]
    for lane in plan.lanes:
        assert [segment.units[0] for segment in lane.segments] == ["u0", "u1", "u5"]
        assert lane.segments[0].devices == lane.segments[2].devices == (lane.name,)
        assert lane.segments[1].devices[0] in ("h", "i")


def test_a_client_waits_for_nothing_but_its_helper() -> None:
    """A client runs part 1 forward, part 3 forward and backward by micro-batch, then part 1 backward."""
    plan = solved(five(micro_batches=2)).plan
    spelled = " ".join(map(str, actions_of(plan, "x")))
    assert spelled == "x/0F0 x/0F1 x/2F0 x/2B0 x/2F1 x/2B1 x/0B0 x/0B1"


def test_the_fastest_quarter_helps() -> None:
    """Without given roles, the fastest of five devices is the only helper."""
    plan = solved(five(helpers=[])).plan
    assert {lane.segments[1].devices for lane in plan.lanes} == {("h",)}
    assert [lane.name for lane in plan.lanes] == ["i", "x", "y", "z"]


@pytest.mark.parametrize("micro_batches", [1, 3])
def test_no_other_order_or_assignment_passes_the_bound(micro_batches: int) -> None:
    """The bound holds for all assignments of three clients to two helpers with all forwards before all backwards, in
    every order of clients each way."""
    problem = five(micro_batches)
    result, clock = solved(problem), Clock(problem.fleet, problem.profile)
    found = []
    for helpers in product("hi", repeat=3):
        lanes = tuple(
            replace(lane, segments=(lane.segments[0], _on(lane.segments[1], helper), lane.segments[2]))
            for lane, helper in zip(result.plan.lanes, helpers, strict=True)
        )
        for there, back in product(permutations("xyz"), repeat=2):
            orders = [order for order in result.plan.order if order.device in "xyz"]
            for helper in set(helpers):
                mine = {lane.name for lane, whose in zip(lanes, helpers, strict=True) if whose == helper}
                actions = [
                    f"{client}/1{letter}{m}"
                    for letter, ordered in (("F", there), ("B", back))
                    for client in ordered
                    if client in mine
                    for m in range(micro_batches)
                ]
                orders.append(replace(orders[0], device=helper, actions=tuple(actions)))
            found.append(clock.round_s(replace(result.plan, lanes=lanes, order=tuple(orders))))
    assert result.lower_bound is not None and result.lower_bound <= min(found)
    assert result.objective <= min(found) * 1.05


def _on(segment: object, helper: str) -> object:
    share = segment.shares[0]  # type: ignore[attr-defined]
    return replace(segment, shares=(replace(share, device=helper),))  # type: ignore[type-var]


def test_searched_cuts_are_no_worse_than_given_ones() -> None:
    """The chosen pair of cuts has the shortest greedy schedule of all pairs."""
    places = ["u0", "u1", "u3", "u4"]
    pairs = [(a, b) for a in places for b in places if a < b]
    greedy = [solved(five(cuts=list(pair), method="balanced-greedy")).objective for pair in pairs]
    assert solved(five(cuts=None, method="balanced-greedy")).objective == pytest.approx(min(greedy), rel=0.02)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"cuts": ["u2", "u4"]}, "the model cannot be cut after unit u2"),
        ({"cuts": ["u4", "u0"]}, "leave nothing between them"),
        ({"cuts": ["u0", "layer.9"]}, "cuts: layer.9 is no unit of the model; give two of u0, u1, u2"),
        ({"helpers": ["h"], "clients": ["h"]}, "device 'h' is used twice"),
        ({"method": "admm"}, "admm preempts tasks"),
        ({"method": "magic"}, "'magic' is not known"),
        ({"devices": ["x", "y"]}, "h is not among the devices x, y"),
        ({"local_rounds": {"y": 11}}, "local_rounds of y is 11; give 1 to 10, the rounds between averages"),
        ({"local_rounds": {"y": 0}}, "local_rounds of y is 0; give 1 to 10"),
        ({"local_rounds": {"h": 3}}, "local_rounds names h, which is no client; known: x, y, z"),
        ({"helpers": ["h", "i", "x", "y", "z"]}, "no device is left to be helper or client"),
    ],
)
def test_what_cannot_be_is_refused(options: dict[str, object], said: str) -> None:
    """Malformed options are refused with the strategy's name."""
    with pytest.raises(Refused, match=said):
        solved(five(**options))


def test_missing_memory_names_the_helper_or_client() -> None:
    """A helper without the 20 kB for a copy of part 2 is named in the error."""
    problem = five()
    tight = fleets.fleet(*(fleets.device(n, 10_000 if n in "hi" else 10**9) for n in "hixyz"), bytes_per_s=1e5)
    with pytest.raises(Infeasible, match="helpers are 0 h, 1 i"):
        solved(replace(problem, fleet=tight))


def test_missing_memory_of_a_client_is_told() -> None:
    """A client without memory for its own parts is named in the error."""
    tight = fleets.fleet(*(fleets.device(n, 1_000 if n == "y" else 10**9) for n in "hixyz"), bytes_per_s=1e5)
    for cuts in (None, ["u0", "u4"]):
        with pytest.raises(Infeasible, match="y lacks"):
            solved(replace(five(cuts=cuts), fleet=tight))


def test_with_searched_cuts_the_bound_holds_for_all() -> None:
    """The bound is at most the round of every pair of cuts."""
    searched = solved(five(cuts=None))
    places = ["u0", "u1", "u3", "u4"]
    rounds = [solved(five(cuts=[a, b])).objective for a in places for b in places if a < b]
    assert searched.lower_bound is not None and 0 < searched.lower_bound <= min(rounds)


@pytest.mark.parametrize("cuts", [None, ["u0", "u4"]])
def test_without_named_helpers_the_bound_holds_for_any_helper(cuts: list[str] | None) -> None:
    """z is slow, and as a client it makes the round several times as long as with z as the helper: no plan of the
    default helper is called optimal, and no helper's plan beats the bound."""
    units = [fleets.unit(f"u{k}") for k in range(6)]
    paces = {"a": 0.001, "b": 0.001, "z": 0.02}
    problem = replace(
        small(micro_batch_samples=1, micro_batches=1, cuts=cuts),
        fleet=fleets.fleet(*map(fleets.device, paces), bytes_per_s=1e10, latency_s=0.0),
        profile=fleets.profile(units, paces, [8, 1, 1, 1, 1, 8]),
    )
    result = solved(problem)
    rounds = [solved(replace(problem, options={"cuts": cuts, "helpers": [name]})).objective for name in paces]
    assert min(rounds) < 0.6 * result.objective
    assert result.status == "feasible" and result.lower_bound is not None and 0 < result.lower_bound <= min(rounds)


def test_cuts_whose_middle_fits_no_helper_count_for_nothing() -> None:
    """A unit too large for the helper stays with the client, and the bound is finite."""
    units = [fleets.unit(f"u{k}", param_bytes=1000 if k == 2 else 100) for k in range(5)]
    problem = replace(
        small(micro_batch_samples=1, micro_batches=1, helpers=["a"]),
        fleet=fleets.fleet(fleets.device("a", 2000), fleets.device("b", 10**6)),
        profile=fleets.profile(units, {"a": 0.001, "b": 0.002}),
    )
    result = solved(problem)
    assert "u2" not in result.plan.lanes[0].segments[1].units
    assert result.lower_bound is not None and 0 < result.lower_bound <= result.objective


def with_memory(problem: Problem, bytes_of: dict[str, int]) -> Problem:
    """The problem on devices of so much memory, a GB where none is given."""
    fleet = problem.fleet
    devices = tuple(replace(each, memory_bytes=bytes_of.get(each.name, 10**9)) for each in fleet.devices)
    return replace(problem, fleet=replace(fleet, devices=devices))


def test_searched_cuts_leave_memory_for_averages() -> None:
    """h has memory for two clients' copies of four units, and for averages of fewer: the cuts are nearer then."""
    wide = solved(five(cuts=None, helpers=["h"])).plan
    least = min(memory(five(cuts=[a, b], helpers=["h"]), "h") for a, b in (("u0", "u1"), ("u1", "u3"), ("u3", "u4")))
    assert memory(five(cuts=None, helpers=["h"]), "h") > least
    tight = with_memory(five(cuts=None, helpers=["h"]), {"h": least})
    found = solved(tight).plan
    assert len(found.lanes[0].segments[1].units) < len(wide.lanes[0].segments[1].units)
    with pytest.raises(Infeasible, match="with the last pair of cuts that was tried, h lacks .* averages of them"):
        solved(with_memory(tight, {"h": 20_000}))


def memory(problem: Problem, device: str) -> int:
    """Bytes of a device in the plan of a problem."""
    return Clock(problem.fleet, problem.profile).memory_bytes(solved(problem).plan, device)


def test_helpers_with_memory_take_the_clients_of_one_without() -> None:
    """With 40 kB h holds the copies of both its clients, but not what averages of them take; with 20 kB it has no
    memory for a single client and the averages. The other helper takes one client more, or all."""
    assert [lane.segments[1].devices for lane in solved(five()).plan.lanes].count(("h",)) == 2
    for size, clients in ((40_000, 1), (20_000, 0)):
        plan = solved(with_memory(five(), {"h": size})).plan
        assert [lane.segments[1].devices for lane in plan.lanes].count(("h",)) == clients
    with pytest.raises(Infeasible, match="[hi] lacks .* for its parts of the model and for averages of them; give it"):
        solved(with_memory(five(), {"h": 20_000, "i": 60_000}))


def test_missing_memory_of_a_client_for_averages_is_told() -> None:
    """A client with memory for its own parts, but not for averages of them, is named."""
    for cuts in (None, ["u0", "u4"]):
        with pytest.raises(Infeasible, match="y lacks .* for its parts of the model and for averages of them"):
            solved(with_memory(five(cuts=cuts), {"y": 10_000}))


@pytest.mark.parametrize("pace", [0.0, 1e-9])
def test_work_of_no_time_breaks_no_bound(pace: float) -> None:
    """With units of almost no time, slots are fine enough that the bound stays below the round."""
    problem = five(micro_batches=3)
    none = fleets.profile(list(problem.profile.units), dict.fromkeys("hixyz", pace))
    result = solved(replace(problem, profile=none))
    assert result.lower_bound is not None and result.lower_bound <= result.objective


def test_slow_clients_may_run_fewer_micro_batches() -> None:
    """x is the fastest; y needs 1.5 and z 2.25 times as long, so they run 4 and 3 of 6 micro-batches, and z four if no
    client may run fewer. The round gets shorter, and a client's order has its own micro-batches only."""
    equal, found, least = (
        solved(five(micro_batches=6, **options))
        for options in ({}, {"least_micro_batches": 1}, {"least_micro_batches": 4})
    )
    assert [lane.micro_batches for lane in equal.plan.lanes] == [0, 0, 0]
    assert [lane.micro_batches for lane in found.plan.lanes] == [0, 4, 3]
    assert [lane.micro_batches for lane in least.plan.lanes] == [0, 4, 4]
    assert found.objective < least.objective < equal.objective
    assert len(actions_of(found.plan, "z")) == 4 * 3
    assert found.lower_bound is not None and found.lower_bound <= found.objective


@pytest.mark.parametrize(("idle", "expected"), [("z", (1, 1, 6)), ("xyz", (6, 6, 6))])
def test_a_client_that_takes_no_time_runs_all_micro_batches(idle: str, expected: tuple[int, ...]) -> None:
    """Beside it every other client is slow without bound, and runs the least; equal clients run as many."""
    posed = five(micro_batches=6, least_micro_batches=1)
    none = ((0.0,) * len(posed.profile.batch_sizes),) * len(posed.profile.units)
    times = tuple(
        replace(each, forward_s=none, backward_s=none) if each.device in idle else each for each in posed.profile.times
    )
    plan = solved(replace(posed, profile=replace(posed.profile, times=times))).plan
    assert tuple(lane.micro_batches or 6 for lane in plan.lanes) == expected


def test_devices_with_data_of_their_own_are_the_clients() -> None:
    """Helpers are chosen among the others; a client that is named needs data."""
    free = replace(five(helpers=[]), owners=("h", "y"))
    plan = solved(free).plan
    assert [lane.name for lane in plan.lanes] == ["h", "y"], "not even the fastest may help"
    assert {lane.segments[1].devices for lane in plan.lanes} == {("i",)}
    with pytest.raises(Refused, match="lane z begins on z, which has no data"):
        solved(replace(five(clients=["y", "z"]), owners=("x", "y")))


def test_clients_with_few_data_take_fewer_steps_between_averages() -> None:
    """The others take one in every round, and some client has to. When the only one is lost, the others keep their
    proportions, also where no helper is left."""
    found = solved(five(local_rounds={"y": 2, "z": 5}))
    assert [lane.rounds for lane in found.plan.lanes] == [0, 2, 5] and found.plan.average_every_rounds == 10
    assert found.objective == solved(five()).objective, "of a round in which all take a step"
    with pytest.raises(Refused, match="no lane takes a step in all 10 rounds between averages; lower average_every_"):
        solved(five(local_rounds={"x": 4, "y": 4, "z": 1}))
    problem = five(local_rounds={"y": 2, "z": 5})
    for lost, rounds in (({"x"}, {"y": 4, "z": 0}), ({"h", "i"}, {"x": 0, "y": 2, "z": 5}), ({"x", "z"}, {"y": 0})):
        left = own(SplitLearning(), problem, found.plan, lost).plan
        assert {lane.name: lane.rounds for lane in left.lanes} == rounds and left.average_every_rounds == 10
