"""Plans once looked at, as text: whoever changes a planner reads here what became of them."""

from pathlib import Path

import pytest

from fleetune import solving
from fleetune.contracts import wire
from fleetune.solving.d2ft.methods import SUMMARIES
from fleetune.solving.d2ft.problem import Problem
from fleetune.solving.d2ft.solve import solve
from tests.golden import same_as_golden

EXAMPLE = Path(__file__).parents[3] / "configs/problems/d2ft-four-heads.json"
SIGNS = {1: "F", 2: "o", 3: "."}


def text(problem: Problem, method: str) -> str:
    """What it is worth, then a line per subnet: F full, o forward-only."""
    plan = solve(problem, method=method)
    kind = solving.kinds()["d2ft"]
    bound = "no bound" if plan.upper_bound is None else f"at most {plan.upper_bound:.2f}"
    lines = [f"{plan.method}: {plan.objective:.2f}, {bound}, {kind.in_short(plan)}"]
    lines.append(f"forward {plan.forward_objective:.2f}, workload variance {plan.workload_variance:.5f}")
    lines += [" ".join(SIGNS[one] for one in row) for row in plan.table]
    return "\n".join([*lines, plan.reason]).rstrip() + "\n"


@pytest.mark.parametrize("method", [*SUMMARIES, "joint-weighted"])
def test_plan(method: str) -> None:
    """The plan of the example is the one that was looked at."""
    plain = wire.dump(wire.read(Problem, EXAMPLE)) | ({"forward_weight": 60.0} if method == "joint-weighted" else {})
    problem = wire.load(Problem, plain, "example")
    same_as_golden(f"solve-d2ft-{method}.txt", text(problem, method.removesuffix("-weighted")))
