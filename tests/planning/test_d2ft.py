"""Strategy d2ft: gates on a hybrid pipeline, within every device's budget."""

from dataclasses import replace

import pytest

from fleetune.clock import Clock
from fleetune.contracts.head_scores import HeadScores
from fleetune.contracts.plan import PlanResult
from fleetune.contracts.subnet import Subnet
from fleetune.errors import Infeasible, Refused
from fleetune.planning import Problem, solve
from fleetune.planning.strategies.d2ft import choose_gates
from tests.support.clock import fleets
from tests.support.planning.instances import scored, small


def solved(problem: Problem) -> PlanResult:
    """Result of strategy d2ft."""
    return solve("d2ft", problem, now=lambda: 0.0)


def asked(**options: object) -> Problem:
    """A problem of five micro-batches of four samples on a, b and c, with four units of two heads."""
    return scored(small(micro_batch_samples=4, micro_batches=5, **options))


def counts(result: PlanResult) -> set[tuple[int, int, int]]:
    """Number of full, forward-only and skipped operations per subnet."""
    return {tuple(gate.operations.count(digit) for digit in "123") for gate in result.plan.gates}  # type: ignore[misc]


def test_budgets_are_spent() -> None:
    """Every device gets three full and one forward-only of five micro-batches, whatever its speed."""
    assert counts(solved(asked(method="bilevel-disjoint"))) == {(3, 1, 1)}


def test_devices_may_have_budgets_of_their_own() -> None:
    """A device with its own budget gets one full and two forward-only; the others get the default budget."""
    usual = solved(asked(placement="pp", method="bilevel-disjoint")).plan
    last = usual.lanes[0].segments[-1]
    assert len(last.devices) == 1
    plan = solved(asked(placement="pp", method="bilevel-disjoint", budgets={last.devices[0]: [1, 2]})).plan
    for gate in plan.gates:
        wanted = (1, 2) if gate.subnet.split("#")[0] in last.units else (3, 1)
        assert (gate.operations.count("1"), gate.operations.count("2")) == wanted


def test_a_group_has_the_least_budget_of_its_devices() -> None:
    """In a group that shares samples, the smallest budget holds for all devices."""
    plan = solved(asked(placement="dp", method="bilevel-disjoint", budgets={"c": [1, 2]})).plan
    assert {gate.operations.count("1") for gate in plan.gates} == {1}


def test_a_groups_budget_is_the_least_of_each_kind() -> None:
    """Where one device may train less and another one run less, a group that shares samples keeps within both."""
    budgets = {"a": [3, 0], "b": [2, 4], "c": [3, 4]}
    plan = solved(asked(placement="dp", method="bilevel-disjoint", budgets=budgets)).plan
    counted = {(gate.operations.count("1"), gate.operations.count("2")) for gate in plan.gates}
    assert counted == {(2, 0)}, "a runs nothing forward only, b trains two"


def test_every_micro_batch_is_trained() -> None:
    """Ties of weight magnitudes rotate, so that every micro-batch is trained by some subnet."""
    plan = solved(asked(full=1, forward_only=0)).plan
    assert {m for m in range(5) for gate in plan.gates if gate.operations[m] == "1"} == set(range(5))


def test_with_budgets_for_all_it_is_the_placement() -> None:
    """Gates that are all full do not change the round, to the nanosecond."""
    problem = asked(full=5)
    result = solved(problem)
    assert counts(result) == {(5, 0, 0)}
    clock = Clock(problem.fleet, problem.profile)
    assert result.objective == pytest.approx(clock.round_s(replace(result.plan, gates=())), abs=1e-9)


def test_less_work_takes_less_time() -> None:
    """Gates save 2 of 5 backwards and 1 of 5 forwards of the four fifths of the work that heads do on one device."""
    problem = asked(devices=["a"], method="bilevel-disjoint")
    result = solved(problem)
    whole_s = 5 * 4 * 0.001 * 4.1
    assert result.objective == pytest.approx(whole_s * (1 - 0.8 / 5) + 2 * whole_s * (1 - 0.8 * 2 / 5), rel=1e-6)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"full": -1}, "full must be a number of at least 0"),
        ({"budgets": {"z": [1, 1]}}, "no device 'z'"),
        ({"backward_score": "luck"}, "backward_score is 'luck'; allowed are weight-magnitude"),
        ({"method": "magic"}, "'magic' is not known"),
        ({"refresh_every_rounds": 1}, "every round would run all heads in full; give 2 or more, or 0"),
        ({"forward_weight": 0.5}, "forward_weight is for method joint, and method is bilevel"),
        ({"placement": "hetpipe"}, "placement hetpipe is asynchronous"),
    ],
)
def test_what_cannot_be_is_refused(options: dict[str, object], said: str) -> None:
    """Malformed options are refused with the strategy's name."""
    with pytest.raises(Refused, match=said):
        solved(asked(**options))


def test_scores_must_be_there_and_of_a_round() -> None:
    """A profile without scores, or with scores of another number of micro-batches, is refused."""
    with pytest.raises(Refused, match="no scores of subnets; ask for them with profile.scores=true"):
        solved(small())
    with pytest.raises(Refused, match="scores are of 5 micro-batches, and a round has 3"):
        solved(replace(asked(), micro_batches=3))


def test_scores_of_a_training_choose_by_the_same_rules() -> None:
    """The profile's own scores choose the plan's gates again; other ones others, within the same budgets."""
    problem = asked(method="bilevel-disjoint", refresh_every_rounds=10)
    plan = solved(problem).plan
    assert plan.refresh_gates_every_rounds == 10
    before = {gate.subnet: gate.operations for gate in plan.gates}
    own = [scores_of(subnet) for subnet in problem.profile.subnets]
    assert choose_gates(problem, plan, own) == before
    turned = [replace(each, weight_magnitude=1.0 + k, fisher=each.fisher[::-1]) for k, each in enumerate(own)]
    others = choose_gates(problem, plan, turned)
    assert others != before and others.keys() == before.keys()
    assert {tuple(each.count(digit) for digit in "123") for each in others.values()} == {(3, 1, 1)}


def test_scores_of_other_heads_or_micro_batches_choose_nothing() -> None:
    """A head without scores, one that the profile does not have, and scores of another round are refused."""
    problem = asked()
    plan = solved(problem).plan
    own = [scores_of(subnet) for subnet in problem.profile.subnets]
    with pytest.raises(Refused, match=f"devices told those of {len(own) - 1} heads, and the profile has {len(own)}"):
        choose_gates(problem, plan, own[1:])
    with pytest.raises(Refused, match="scores: devices told"):
        choose_gates(problem, plan, [*own[1:], replace(own[0], name="other#0")])
    with pytest.raises(Refused, match="they are not of the 5 micro-batches of a round"):
        choose_gates(problem, plan, [*own[1:], replace(own[0], fisher=(1.0,))])


def test_a_refresh_needs_memory_for_one_more_gradient() -> None:
    """What other micro-batches have left is set aside while one is scored: a copy of what the gated units train."""
    problem = asked(placement="pp")
    plan = solved(problem).plan
    refreshed = replace(plan, refresh_gates_every_rounds=2)
    clock, gated = Clock(problem.fleet, problem.profile), {gate.subnet.split("#")[0] for gate in plan.gates}
    for segment in plan.lanes[0].segments:
        (device,) = segment.devices
        trained = sum(problem.profile.unit(name).trainable_bytes for name in segment.units if name in gated)
        assert trained > 0
        assert clock.memory_bytes(refreshed, device) - clock.memory_bytes(plan, device) == trained


def test_segments_are_placed_with_room_for_it() -> None:
    """Where a device has just the memory of its segment, a plan that refreshes gates gives it fewer units."""
    problem = asked(placement="search")
    usual = solved(problem).plan
    clock = Clock(problem.fleet, problem.profile)
    tight = {name: clock.memory_bytes(usual, name) for name in usual.devices}
    devices = tuple(replace(d, memory_bytes=tight.get(d.name, d.memory_bytes)) for d in problem.fleet.devices)
    narrow = replace(problem, fleet=replace(problem.fleet, devices=devices))
    assert solved(narrow).plan.lanes == usual.lanes
    refreshing = replace(narrow, options={**narrow.options, "refresh_every_rounds": 5})
    try:
        found = solved(refreshing).plan
    except Infeasible as error:
        assert "memory" in str(error)
    else:
        assert found.lanes != usual.lanes
        assert all(clock.memory_bytes(found, name) <= tight.get(name, 1 << 62) for name in found.devices)


def test_segments_that_would_sum_the_gradients_of_shared_weights_are_joined() -> None:
    """As strategy asteroid does, which it is placed as."""
    problem = small(micro_batch_samples=8, micro_batches=6)
    big = replace(fleets.UNITS[0], param_bytes=2_000_000, trainable_bytes=2_000_000, tied=("w",))
    units = (big, *fleets.UNITS[1:3], replace(big, name="u3"))
    untied = scored(replace(problem, profile=replace(fleets.PROFILE, units=units)))
    tied = replace(untied, profile=replace(untied.profile, tied_bytes={"w": 2_000_000}))
    assert len(solved(untied).plan.lanes[0].segments) > 1 and len(solved(tied).plan.lanes[0].segments) == 1


def scores_of(subnet: Subnet) -> HeadScores:
    """The scores that the profile has."""
    return HeadScores(
        name=subnet.name,
        weight_magnitude=subnet.weight_magnitude,
        gradient_magnitude=subnet.gradient_magnitude,
        fisher=subnet.fisher,
    )
