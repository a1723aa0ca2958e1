"""What any strategy must keep, on tiny problems of all kinds."""

from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings

from fleetune.checks import findings
from fleetune.clock import forecast
from fleetune.contracts import wire
from fleetune.contracts.plan import PlanResult
from fleetune.errors import Infeasible, Refused
from fleetune.planning import Problem, solve, strategies
from tests.planning.instances import small, tiny
from tests.planning.scored import scored

PROPERTY = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])


UNSUPPORTED = ("one device", "no unit of the model is trained", "cannot be cut in three")


def solved(strategy: str, problem: Problem) -> PlanResult | None:
    """The result; None where the strategy says in words that nothing satisfies the problem, or why it cannot help."""
    try:
        return solve(strategy, problem, now=lambda: 0.0)
    except Infeasible as reason:
        assert any(word in str(reason) for word in ("lacks", "lack", "need", "micro_batch_samples", "pieces", "memory"))
    except Refused as reason:
        assert any(words in str(reason) for words in UNSUPPORTED)
    return None


def ready_for(strategy: str, problem: Problem) -> Problem:
    """With scores, for the strategy that needs them."""
    return scored(problem) if strategy == "d2ft" else problem


@PROPERTY
@given(problem=tiny())
def test_a_plan_is_runnable_and_its_objective_is_the_clocks(strategy: str, problem: Problem) -> None:
    """No findings, memory included; the objective is the forecast's round to 1e-9; the bound lies below."""
    problem = ready_for(strategy, problem)
    result = solved(strategy, problem)
    if result is None:
        return
    assert findings(result.plan, problem.fleet, problem.profile) == ()
    said = forecast(result.plan, problem.fleet, problem.profile)
    assert result.objective == pytest.approx(said.round_s, abs=1e-9)
    assert result.lower_bound is not None or strategy == "d2ft"  # how much work gates leave is its own choice
    assert result.gap is None or result.gap >= 0
    for amount in said.memory_bytes:
        assert amount.amount <= problem.fleet.device(amount.device).memory_bytes


@settings(PROPERTY, max_examples=15)
@given(problem=tiny())
def test_the_same_problem_has_the_same_answer(strategy: str, problem: Problem) -> None:
    """Byte for byte; planning draws no chance and reads no clock but solve_s."""
    problem = ready_for(strategy, problem)
    first, second = solved(strategy, problem), solved(strategy, problem)
    assert first == second
    if first is not None and second is not None:
        assert wire.text(first) == wire.text(second)


def test_a_result_survives_json(strategy: str) -> None:
    """The plan artifact reads back as it was."""
    result = solve(strategy, ready_for(strategy, small()))
    assert wire.parse(PlanResult, wire.text(result), "plan") == result


def test_an_unknown_option_is_refused_by_name_with_the_list(strategy: str) -> None:
    """A typo in a run file names itself."""
    with pytest.raises(Refused, match=f"strategy {strategy}: divices: unknown key; allowed are .*device"):
        solve(strategy, ready_for(strategy, small(divices=["a"])))


def test_an_unknown_device_in_the_options_is_refused(strategy: str) -> None:
    """The fleet's names are listed."""
    options = {"device": "z"} if strategy == "single" else {"devices": ["z"]}
    with pytest.raises(Refused, match="no device 'z'; it has a, b, c"):
        solve(strategy, ready_for(strategy, small(**options)))


def test_a_fleet_that_was_not_measured_is_refused(strategy: str) -> None:
    """A strategy that cannot help says why before it tries."""
    problem = ready_for(strategy, small())
    some = replace(problem, profile=replace(problem.profile, times=problem.profile.times[:2]))
    with pytest.raises(Refused, match=f"strategy {strategy}: device c has no measured times"):
        solve(strategy, some)


def test_every_strategy_says_what_it_follows(strategy: str) -> None:
    """A citation with a year, one line about itself, its own name on its plans."""
    known = strategies()[strategy]
    assert any(part.strip(".,()").isdigit() for part in known.citation.split())
    assert known.summary and "\n" not in known.summary
    assert solve(strategy, ready_for(strategy, small())).plan.strategy == strategy == known.name


def test_an_unknown_strategy_is_refused_with_the_list() -> None:
    """Names come from the registry."""
    with pytest.raises(Refused, match="'metis' is not known; allowed are asteroid, single, dp, pp, fusionllm"):
        solve("metis", small())


def test_solve_s_is_what_the_given_clock_says() -> None:
    """Time is handed in."""
    times = iter((10.0, 12.5))
    assert solve("single", small(), now=lambda: next(times)).solve_s == 2.5
