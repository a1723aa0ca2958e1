"""`exact` and `auto`: optimal on tiny problems, never worse than the paper's heuristics, bounded, deterministic."""

import random
from dataclasses import replace
from typing import Any

import pytest

from fleetune.errors import Infeasible
from fleetune.solving.api import document
from fleetune.solving.split.assignment import SolverLimit
from fleetune.solving.split.benders import BendersMaster
from fleetune.solving.split.cp_model import improve_plan
from fleetune.solving.split.energetic import EnergeticBound
from fleetune.solving.split.instance import Instance
from fleetune.solving.split.methods.baselines import balanced_greedy
from fleetune.solving.split.problem import MATRICES, Problem, Solution
from fleetune.solving.split.schedule import Gap, makespan, verify
from fleetune.solving.split.schedule_cache import ScheduleCache, masks_of
from fleetune.solving.split.single_machine import SingleMachine
from fleetune.solving.split.solve import solve
from tests.support.golden import same_as_golden
from tests.support.solving.split.problems import random_problem, scenario_problem, tiny_problem
from tests.support.solving.split.reference import best, check


@pytest.mark.parametrize("method", ["exact", "auto"])
@pytest.mark.parametrize("switch", [0, 2])
@pytest.mark.parametrize("preemptive", [False, True])
def test_best_of_all(preemptive: bool, switch: int, method: str) -> None:
    """The plan satisfies the contract, is optimal and proven; a problem without a plan is Infeasible."""
    for seed in range(24):
        problem = tiny_problem(seed, preemptive=preemptive, switch=switch, link=0.15, room=1.2 + seed % 2)
        least = best(problem)
        if least is None:
            with pytest.raises(Infeasible):
                solve(problem, method=method)
            continue
        plan = solve(problem, method=method)
        check(problem, plan)
        assert plan.objective == least
        assert plan.lower_bound == least
        assert plan.deterministic


@pytest.mark.parametrize("switch", [0, 2])
@pytest.mark.parametrize("preemptive", [False, True])
def test_cp_model(preemptive: bool, switch: int) -> None:
    """The CP-SAT model alone finds the optimum from a poor plan, and proves that there is none better."""
    improvements = 0
    for seed in range(30):
        problem = tiny_problem(seed, preemptive=preemptive, switch=switch, link=0.1)
        least = best(problem)
        if least is None:
            continue
        instance = Instance.from_problem(problem)
        start = balanced_greedy(instance)
        value = makespan(instance, start.helper, start.rows)
        master = BendersMaster(EnergeticBound(instance), ScheduleCache(instance))
        gap, limit = Gap(0, value), SolverLimit(20.0)
        answer = improve_plan(master, masks_of(instance, start.helper), start.rows, gap, limit)
        if answer.helper is None:
            assert value == least
            assert answer.bound == value
        else:
            improvements += 1
            verify(instance, answer.helper, answer.rows)
            assert makespan(instance, answer.helper, answer.rows) == least
            assert answer.bound == least
    assert improvements > 5


@pytest.mark.parametrize("preemptive", [False, True])
def test_golden_exact(preemptive: bool) -> None:
    """The plan equals the golden file."""
    problem = random_problem(3, 7, 2, preemptive=preemptive, longest=6, delay=12, switch=2)
    name = f"solve-split-exact-{'preemptive' if preemptive else 'whole'}.txt"
    same_as_golden(name, drawing(solve(problem, method="exact")))


def drawing(plan) -> str:  # type: ignore[no-untyped-def]
    """Draw makespan and bound, then the tasks of each helper, forwards as f, backwards as b."""
    lines = [f"{plan.method}: makespan {plan.objective}, and no plan less than {plan.lower_bound}"]
    for i in range(len(plan.order)):
        rows = [piece for piece in plan.schedule if plan.helper[piece.client] == i]
        tasks = " ".join(f"{piece.direction[0]}{piece.client}[{piece.start},{piece.end})" for piece in rows)
        lines.append(f"  helper {i}: {tasks}")
    return "\n".join(lines) + "\n"


def without_time(plan: Solution) -> dict[str, Any]:
    """Return the plan's JSON without the seconds."""
    return {key: value for key, value in document(plan).items() if key != "solve_s"}


@pytest.mark.parametrize("preemptive", [False, True])
def test_never_worse(preemptive: bool) -> None:
    """Neither of the paper's heuristics has a shorter makespan, with switch costs, little memory and missing links."""
    for seed in range(12):
        problem = random_problem(
            seed, 4 + seed % 9, 1 + seed % 4, preemptive=preemptive, longest=9, delay=20, link=0.1, room=1.4,
            switch=seed % 3,
        )  # fmt: skip
        try:
            plan = solve(problem, seed=seed)
        except Infeasible:
            continue
        check(problem, plan)
        for method in ("balanced-greedy", "random-fcfs"):
            other = solve(problem, method=method, seed=seed)
            assert plan.objective <= other.objective
            assert other.lower_bound is not None
            assert other.lower_bound <= plan.objective


@pytest.mark.parametrize("preemptive", [False, True])
def test_same_again(preemptive: bool) -> None:
    """Two runs differ only in the seconds."""
    for problem in (
        scenario_problem(4, 14, 3, preemptive=preemptive),
        random_problem(5, 16, 4, preemptive=preemptive, longest=9),
    ):
        assert without_time(solve(problem, seed=3)) == without_time(solve(problem, seed=3))
    short = scenario_problem(4, 8, 2, preemptive=preemptive)
    assert without_time(solve(short, method="exact")) == without_time(solve(short, method="exact"))


@pytest.mark.parametrize("preemptive", [False, True])
def test_scale(preemptive: bool) -> None:
    """70 clients on 10 helpers: a valid plan within 3 % of its own bound."""
    for problem in (
        scenario_problem(0, 70, 10, preemptive=preemptive),
        random_problem(1, 70, 10, preemptive=preemptive, delay=60),
    ):
        plan = solve(problem)
        check(problem, plan)
        assert plan.lower_bound is not None
        assert plan.objective <= 1.03 * plan.lower_bound


@pytest.mark.parametrize("preemptive", [False, True])
def test_alike_helpers(preemptive: bool) -> None:
    """Identical helpers, the worst case of constraint solvers alone, are solved to optimality or nearly."""
    one = scenario_problem(7, 16, 1, preemptive=preemptive)
    matrices = {name: getattr(one, name) * 4 for name in MATRICES}
    problem = replace(one, **matrices, helper_memory=one.helper_memory * 4, switch_cost=one.switch_cost * 4)
    plan = solve(problem)
    check(problem, plan)
    assert plan.lower_bound is not None
    assert plan.objective <= 1.02 * plan.lower_bound


@pytest.mark.parametrize("method", ["auto", "exact"])
@pytest.mark.parametrize("preemptive", [False, True])
def test_fine_units(preemptive: bool, method: str) -> None:
    """Times in a unit a million times finer are planned as well as coarse ones."""
    problem = finer(scenario_problem(1, 9, 3, preemptive=preemptive), 10**6)
    plan = solve(problem, method=method)
    check(problem, plan)
    assert plan.lower_bound is not None
    assert plan.objective <= 1.01 * plan.lower_bound


def test_largest_units() -> None:
    """The largest permitted numbers give a valid plan with a bound and no overflow."""
    problem = finer(scenario_problem(1, 6, 2), 10**11)
    check(problem, solve(problem))


def finer(problem: Problem, factor: int) -> Problem:
    """Return the problem in a smaller unit, with times that are not all multiples of it."""
    r = random.Random(0)
    matrices = {
        name: tuple(tuple(x * factor + r.randrange(factor // 10) for x in row) for row in getattr(problem, name))
        for name in MATRICES
    }
    return replace(problem, **matrices)


@pytest.mark.parametrize("method", ["auto", "exact"])
def test_time_limit(method: str) -> None:
    """A time limit is kept, gives a valid plan, and makes the plan non-deterministic."""
    problem = random_problem(3, 40, 6, preemptive=False, longest=30, delay=60, room=1.3)
    plan = solve(problem, method=method, time_limit_s=1.0)
    check(problem, plan)
    assert not plan.deterministic
    assert plan.solve_s < 20


def test_calm() -> None:
    """No helper interrupts a task if "longest tail first" meets the makespan without interruptions."""
    for seed in range(6):
        problem = scenario_problem(seed, 10, 3)
        plan = solve(problem)
        check(problem, plan)
        for i in range(3):
            clients = [j for j in range(10) if plan.helper[j] == i]
            if sum(plan.helper[piece.client] == i for piece in plan.schedule) > 2 * len(clients):
                calm = SingleMachine(Instance.from_problem(problem), i, preemptive=False).solve(clients, nodes=0)
                assert calm.value > plan.objective


def test_memory_binds() -> None:
    """Each helper has memory for just two of the clients, and gets two."""
    base = scenario_problem(5, 6, 3)
    problem = replace(base, helper_memory=(2.0,) * 3, client_memory=(1.0,) * 6)
    plan = solve(problem)
    check(problem, plan)
    assert sorted(plan.helper) == [0, 0, 1, 1, 2, 2]


@pytest.mark.parametrize("preemptive", [False, True])
def test_golden(preemptive: bool) -> None:
    """The plan equals the golden file."""
    problem = random_problem(6, 9, 3, preemptive=preemptive, longest=9, delay=12)
    same_as_golden(f"solve-split-auto-{'preemptive' if preemptive else 'whole'}.txt", drawing(solve(problem)))
