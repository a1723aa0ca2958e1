"""Reviewed plans as text: a change of a planner shows here as a difference."""

import pytest

from fleetune.solving.hpp.problem import Problem, Solution
from fleetune.solving.hpp.solve import solve
from tests.support.golden import same_as_golden
from tests.support.solving.hpp.instances import drawn, tiny

PROBLEMS = {
    "drawn": drawn(),
    "fast-links": tiny(11, layers=5, samples=5, link=10.0),
    "slow-links": tiny(12, layers=5, samples=5, link=0.15),
    "little-memory": tiny(13, layers=5, samples=4, memory=0.35),
}


def text(problem: Problem, plan: Solution) -> str:
    """Format a plan: its costs, then one line per stage."""
    figures = [plan.objective, plan.formula_round_s or 0.0, plan.lower_bound or 0.0]
    taken, formula, least = (f"{figure * 1e3:.3f} ms" for figure in figures)
    lines = [f"{plan.method}: a round takes {taken}; {formula} by eq. (4), and no plan less than {least}"]
    for stage in plan.stages:
        group = ", ".join(f"{share.name} {share.samples}" for share in stage.devices)
        lines.append(f"  layers [{stage.layers[0]}, {stage.layers[1]})  K {stage.warmup}  {group}")
    budgets = {device.name: device.memory_bytes for device in problem.devices}
    lines += [f"  {name} holds {peak} of {budgets[name]} bytes" for name, peak in plan.memory_bytes.items()]
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize("method", ["search", "asteroid"])
@pytest.mark.parametrize("name", PROBLEMS)
def test_plan(name: str, method: str) -> None:
    """The plan is the one that was reviewed."""
    problem = PROBLEMS[name]
    same_as_golden(f"solve-{name}-{method}.txt", text(problem, solve(problem, method=method)))
