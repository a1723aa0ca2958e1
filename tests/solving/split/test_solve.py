"""Every method of kind split through the common interface: contract, determinism, errors, golden plans."""

import dataclasses
import json

import pytest

from fleetune import solving
from fleetune.contracts import json_io
from fleetune.errors import Infeasible, Refused
from fleetune.solving.split import SPLIT, describe_plan
from fleetune.solving.split.methods import SUMMARIES
from fleetune.solving.split.problem import Problem, Solution
from fleetune.solving.split.solve import solve
from tests.support.golden import same_as_golden
from tests.support.solving.split import reference
from tests.support.solving.split.problems import random_problem, scenario_problem, tiny_problem
from tests.support.solving.split.reference import check

METHODS = list(SUMMARIES)


def solvable(problem: Problem, method: str) -> bool:
    """Return True if the method accepts the problem and an assignment exists."""
    return (problem.preemptive or method != "admm") and bool(reference.assignments(problem))


@pytest.mark.parametrize("preemptive", [False, True])
@pytest.mark.parametrize("method", METHODS)
def test_every_plan_keeps_to_the_contract(method: str, preemptive: bool) -> None:
    """24 tiny problems: constraints, objective and order by the contract; the optimum lies between bound and plan."""
    for seed in range(24):
        problem = tiny_problem(seed, preemptive=preemptive, link=0.15, room=1.5, switch=seed % 3)
        if solvable(problem, method):
            plan = solve(problem, method=method, seed=seed)
            check(problem, plan)
            optimum = reference.best(problem)
            assert optimum is not None and plan.lower_bound is not None
            assert plan.lower_bound <= optimum <= plan.objective
            assert plan.deterministic


@pytest.mark.parametrize("preemptive", [False, True])
@pytest.mark.parametrize("method", METHODS)
def test_the_same_again(method: str, preemptive: bool) -> None:
    """The same problem and seed give the same JSON up to the seconds."""
    problem = random_problem(6, 7, 3, preemptive=preemptive, longest=9, delay=9, link=0.1, room=1.5)
    if not solvable(problem, method):
        return
    once, again = (solving.document(solve(problem, method=method, seed=3)) for _ in range(2))
    assert json.dumps(once | {"solve_s": 0}) == json.dumps(again | {"solve_s": 0})


@pytest.mark.parametrize("method", METHODS)
def test_large_times(method: str) -> None:
    """Times of 10^9 units and a missing link cause no overflow and no slot-by-slot counting."""
    problem = scenario_problem(2, 8, 3)
    large = {
        field: tuple(
            tuple(None if (i, j) == (1, 2) else value * 10**9 for j, value in enumerate(row))
            for i, row in enumerate(getattr(problem, field))
        )
        for field in ("release", "forward", "turnaround_forward", "turnaround_backward", "backward", "tail")
    }
    scaled = dataclasses.replace(problem, **large)
    check(scaled, solve(scaled, method=method))


def test_an_infeasible_problem_is_told_by_every_method() -> None:
    """Every method raises Infeasible and names who lacks what."""
    short = dataclasses.replace(
        tiny_problem(3, preemptive=True), helper_memory=(1.0,) * 2, client_memory=(1.0, 1.0, 1.5)
    )
    for method in METHODS:
        with pytest.raises(Infeasible, match=r"client 2 lacks 0.5 of memory on helper 0"):
            solve(short, method=method)


def test_admm_is_for_preemptive_problems() -> None:
    """`admm` refuses problems without preemption at once, and says what to use instead."""
    with pytest.raises(
        Refused, match="method admm: its schedules interrupt tasks.*take auto.*or set preemptive to true"
    ):
        solve(tiny_problem(3, preemptive=False), method="admm")


def test_an_unknown_method() -> None:
    """An unknown method is refused with the known ones, also through the common interface."""
    with pytest.raises(Refused, match="'magic' is not known; allowed are auto, exact, admm, balanced-greedy, random-"):
        solve(tiny_problem(3, preemptive=True), method="magic")
    with pytest.raises(Refused, match="method 'magic' is not known for kind split"):
        solving.solve(SPLIT, tiny_problem(3, preemptive=True), method="magic")


def test_through_the_interface() -> None:
    """The kind is registered, reads its JSON, and its first method is the default."""
    problem = tiny_problem(2, preemptive=True)
    kind, read = solving.read(json_io.text(problem), "p.json", solving.kinds())
    assert (kind, read) == (SPLIT, problem)
    plan = solving.solve(kind, read)
    assert isinstance(plan, Solution)
    assert plan.method == "auto"
    check(problem, plan)


def test_a_plan_is_its_json() -> None:
    """A plan that is written and read again is equal."""
    plan = solve(tiny_problem(2, preemptive=True), method="balanced-greedy")
    assert json_io.parse(Solution, json_io.text(plan), "plan.json") == plan


def test_describe_plan() -> None:
    """The summary shows clients per helper, and interruptions if any."""
    plan = solve(random_problem(1, 5, 2, preemptive=False, room=4.0), method="balanced-greedy")
    assert describe_plan(plan) == "5 clients on 2 helpers (3 + 2)"
    piece = plan.schedule[0]
    assert describe_plan(dataclasses.replace(plan, schedule=(*plan.schedule, piece))).endswith(
        "(3 + 2), 1 interruption"
    )
    many = solve(scenario_problem(1, 30, 14, preemptive=False), method="random-fcfs")
    assert describe_plan(many).endswith(" + ...)")


def text(plan: Solution) -> str:
    """Draw the cost, then a line per helper: its tasks as F or B of the client, with their times."""
    lines = [f"{plan.method}: makespan {plan.objective}, and no plan less than {plan.lower_bound}"]
    for i in range(len(plan.order)):
        rows = [
            f"{row.direction[0].upper()}{row.client} {row.start}-{row.end}"
            for row in plan.schedule
            if plan.helper[row.client] == i
        ]
        lines.append(f"  helper {i}: {', '.join(rows)}")
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize("method", ["admm", "balanced-greedy", "random-fcfs"])
def test_plan(method: str) -> None:
    """8 clients on 3 helpers with little memory and switch costs: the plan equals the golden file."""
    problem = random_problem(4, 8, 3, preemptive=True, longest=9, delay=12, link=0.1, room=1.4, switch=2)
    plan = solve(problem, method=method)
    check(problem, plan)
    same_as_golden(f"solve-split-{method}.txt", text(plan))


def test_plan_without_interruptions() -> None:
    """The same problem without preemption: the plan equals the golden file."""
    problem = random_problem(4, 8, 3, preemptive=False, longest=9, delay=12, link=0.1, room=1.4, switch=2)
    plan = solve(problem, method="balanced-greedy")
    check(problem, plan)
    same_as_golden("solve-split-whole-balanced-greedy.txt", text(plan))
