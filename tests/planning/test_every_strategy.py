"""Properties that hold for every strategy, on small random problems."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings

from fleetune.checks import findings
from fleetune.clock import forecast
from fleetune.contracts import json_io
from fleetune.contracts.plan import PlanResult
from fleetune.contracts.run_config import StrategyRequest
from fleetune.errors import Refused
from fleetune.planning import Problem, citations, solve, strategies
from tests.support.planning.bibtex import parsed
from tests.support.planning.instances import small, tiny
from tests.support.planning.solutions import PROPERTY, ready_for, solved

pytestmark = pytest.mark.usefixtures("short_walks")


@PROPERTY
@given(problem=tiny() | tiny(workspaces=True))
def test_a_plan_is_runnable_and_its_objective_is_the_clocks(strategy: str, problem: Problem) -> None:
    """A plan passes all checks and fits memory; its objective is the forecast's round to 1e-9, above its bound."""
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
    """Two solutions of one problem are equal byte for byte."""
    problem = ready_for(strategy, problem)
    first, second = solved(strategy, problem), solved(strategy, problem)
    assert first == second
    if first is not None and second is not None:
        assert json_io.text(first) == json_io.text(second)


def test_a_result_survives_json(strategy: str) -> None:
    """A result equals itself after writing and reading JSON."""
    result = solve(strategy, ready_for(strategy, small()))
    assert json_io.parse(PlanResult, json_io.text(result), "plan") == result


def test_an_unknown_option_is_refused_by_name_with_the_list(strategy: str) -> None:
    """An unknown option is named in the error with the list of known ones."""
    with pytest.raises(Refused, match=f"strategy {strategy}: divices: unknown key; allowed are .*device"):
        solve(strategy, ready_for(strategy, small(divices=["a"])))


def test_an_unknown_device_in_the_options_is_refused(strategy: str) -> None:
    """An unknown device is refused with the list of the fleet's devices."""
    options = {"device": "z"} if strategy == "single" else {"devices": ["z"]}
    with pytest.raises(Refused, match="no device 'z'; it has a, b, c"):
        solve(strategy, ready_for(strategy, small(**options)))


def test_a_fleet_that_was_not_measured_is_refused(strategy: str) -> None:
    """A fleet with an unmeasured device is refused before planning."""
    problem = ready_for(strategy, small())
    some = replace(problem, profile=replace(problem.profile, times=problem.profile.times[:2]))
    with pytest.raises(Refused, match=f"strategy {strategy}: device c has no measured times"):
        solve(strategy, some)


def test_every_strategy_has_a_summary_and_puts_its_name_on_its_plans(strategy: str) -> None:
    """The summary is one line, and a plan names its strategy."""
    known = strategies()[strategy]
    assert known.summary and "\n" not in known.summary
    assert solve(strategy, ready_for(strategy, small())).plan.strategy == strategy == known.name


def test_every_strategy_has_a_citation(strategy: str) -> None:
    """The citation is BibTeX with authors, a title and a year, and its plans carry it."""
    known = strategies()[strategy]
    for fields in parsed(known.citation).values():
        assert fields["author"] and fields["title"] and len(fields["year"]) == 4 and fields["year"].isdigit()
    assert solve(strategy, ready_for(strategy, small())).citation == known.citation


@pytest.mark.parametrize(
    ("name", "options", "keys"),
    [
        ("asteroid", {}, ["ye2024asteroid"]),
        ("asteroid", {"method": "dapple"}, ["ye2024asteroid", "fan2021dapple"]),
        ("asteroid", {"compression_ratio": 10.0}, ["ye2024asteroid", "tang2024fusionllm"]),
        ("fusionllm", {"compression_ratio": 10.0}, ["tang2024fusionllm"]),
        ("pp", {}, ["huang2019gpipe", "narayanan2019pipedream"]),
        ("d2ft", {}, ["ding2025d2ft", "ye2024asteroid"]),
    ],
)
def test_citations_follow_the_options(name: str, options: dict[str, Any], keys: list[str]) -> None:
    """The strategy's own paper comes first, then those of the methods and the compression that its options select."""
    entries = citations(StrategyRequest(name=name, options=options))
    assert list(parsed("\n\n".join(entries))) == keys


def test_citations_of_an_unknown_method_are_refused() -> None:
    """A typo in the options is refused with the list of methods, as for a run."""
    with pytest.raises(Refused, match="method is 'dappel'; allowed are search, asteroid"):
        citations(StrategyRequest(name="asteroid", options={"method": "dappel"}))


def test_an_unknown_strategy_is_refused_with_the_list() -> None:
    """An unknown strategy is refused with the list of known ones."""
    with pytest.raises(Refused, match="'metis' is not known; allowed are asteroid, single, dp, pp, fusionllm"):
        solve("metis", small())


def test_solve_s_is_what_the_given_clock_says() -> None:
    """`solve_s` is the difference of the two readings of the given clock."""
    times = iter((10.0, 12.5))
    assert solve("single", small(), now=lambda: next(times)).solve_s == 2.5
