"""Plans compared with enumeration: each is the best that its method can choose; golden plans."""

from pathlib import Path

import pytest

from fleetune import solving
from fleetune.contracts import json_io
from fleetune.solving.d2ft.methods import SUMMARIES
from fleetune.solving.d2ft.problem import Problem
from fleetune.solving.d2ft.solve import solve
from tests.support.golden import same_as_golden
from tests.support.solving.d2ft.instances import tiny
from tests.support.solving.d2ft.reference import (
    FORWARD,
    FULL,
    best_joint,
    check,
    close,
    exact,
    full_cost,
    joint_value,
    of,
    subsets,
    worth,
)


@pytest.mark.parametrize("part", range(8))
def test_joint_is_exact(part: int) -> None:
    """No row of all 3^N is better: exactly for lexicographic, up to rounding for weighted objectives."""
    for seed in range(part * 60, part * 60 + 60):
        problem = tiny(seed, 2, 1 + seed % 6)
        plan = solve(problem, method="joint")
        check(problem, plan)
        for k, row in enumerate(plan.table):
            best = joint_value(problem, k, best_joint(problem, k)[0])
            found = joint_value(problem, k, row)
            assert found == best if problem.forward_weight is None else close(float(found[0]), best[0])


@pytest.mark.parametrize("method", ["bilevel", "bilevel-disjoint"])
def test_both_knapsacks_are_exact(method: str) -> None:
    """Both knapsacks take the best subset that fits; the disjoint inner one among what the outer one left."""
    for seed in range(250):
        problem = tiny(seed, 2, 1 + seed % 6)
        plan = solve(problem, method=method)
        check(problem, plan)
        for k, row in enumerate(plan.table):
            backward, forward = problem.backward_scores[k], problem.forward_scores[k]
            everything, fulls, only = range(len(row)), of(row, FULL), of(row, FORWARD)
            outer = subsets(everything, full_cost(problem, k), exact(problem.full_capacity[k]))
            assert worth(backward, fulls) == max(worth(backward, one) for one in outer)
            room = exact(problem.forward_capacity[k])
            inner = everything if method == "bilevel" else set(everything) - set(fulls)
            most = max(worth(forward, one) for one in subsets(inner, exact(problem.forward_cost[k]), room))
            kept = room - len(only) * exact(problem.forward_cost[k])
            hidden = subsets(fulls if method == "bilevel" else (), exact(problem.forward_cost[k]), kept)
            assert most in {worth(forward, [*only, *one]) for one in hidden}


@pytest.mark.parametrize("method", SUMMARIES)
def test_every_plan_is_what_it_says(method: str) -> None:
    """Budgets are kept or the violation is named, every number is right, and the seed reproduces the plan."""
    for seed in range(200):
        problem = tiny(seed, 1 + seed % 4, 1 + seed % 7)
        plan = solve(problem, method=method, seed=seed)
        check(problem, plan)
        again = solve(problem, method=method, seed=seed)
        assert (again.table, again.objective) == (plan.table, plan.objective)
        assert plan.feasible or method.startswith("magnitude")


def test_disjoint_never_runs_fewer_forward() -> None:
    """Disjoint knapsacks run as many micro-batches forward as the paper's or more, and train the very same."""
    for seed in range(300):
        problem = tiny(seed, 3, 6)
        one, other = (solve(problem, method=name).table for name in ("bilevel", "bilevel-disjoint"))
        for row, disjoint in zip(one, other, strict=True):
            assert of(row, FULL) == of(disjoint, FULL)
            assert len(of(row, FORWARD)) <= len(of(disjoint, FORWARD))


def test_huge_backward_scores_hide_no_forward_scores() -> None:
    """If nothing can be trained, the larger forward score is taken, however small beside scores out of reach."""
    problem = Problem(
        backward_scores=((9e11, 9e11),),
        forward_scores=((2e-10, 8e-10),),
        forward_cost=(3.0,),
        backward_cost=(3.0,),
        full_capacity=(8.0,),
        forward_capacity=(3.0,),
        capacity=(3.0,),
        forward_weight=1.0,
    )
    assert solve(problem, method="joint").table == ((3, 2),)


EXAMPLE = Path(__file__).parents[3] / "configs/problems/d2ft-four-heads.json"
SIGNS = {1: "F", 2: "o", 3: "."}


def text(problem: Problem, method: str) -> str:
    """Draw the objective, then a line per subnet: F full, o forward-only."""
    plan = solve(problem, method=method)
    kind = solving.kinds()["d2ft"]
    bound = "no bound" if plan.upper_bound is None else f"at most {plan.upper_bound:.2f}"
    lines = [f"{plan.method}: {plan.objective:.2f}, {bound}, {kind.describe_plan(plan)}"]
    lines.append(f"forward {plan.forward_objective:.2f}, workload variance {plan.workload_variance:.5f}")
    lines += [" ".join(SIGNS[one] for one in row) for row in plan.table]
    return "\n".join([*lines, plan.reason]).rstrip() + "\n"


@pytest.mark.parametrize("method", [*SUMMARIES, "joint-weighted"])
def test_plan(method: str) -> None:
    """The plan of the example equals the golden file."""
    plain = json_io.dump(json_io.read(Problem, EXAMPLE)) | (
        {"forward_weight": 60.0} if method == "joint-weighted" else {}
    )
    problem = json_io.load(Problem, plain, "example")
    same_as_golden(f"solve-d2ft-{method}.txt", text(problem, method.removesuffix("-weighted")))
