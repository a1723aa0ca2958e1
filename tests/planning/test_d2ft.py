"""Strategy d2ft: gates on a hybrid pipeline, within every device's budget."""

from dataclasses import replace

import pytest

from fleetune.clock import Clock
from fleetune.contracts.plan import PlanResult
from fleetune.errors import Refused
from fleetune.planning import Problem, solve
from tests.planning.instances import scored, small


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
