"""Plans once looked at, as text: whoever changes a planner reads here what became of them."""

from typing import Any

import pytest

from fleetune.contracts import wire
from fleetune.solving.deft.methods import SUMMARIES
from fleetune.solving.deft.problem import Problem, Solution
from fleetune.solving.deft.solve import solve
from tests.golden import same_as_golden
from tests.solving.deft.instances import drawn, example

DRAWN = drawn(4, 8, 4)


def text(problem: dict[str, Any], plan: Solution) -> str:
    """What it costs, a line per block, and where a trace stood."""
    how = f" by {plan.solved_by}" if plan.solved_by else ""
    lines = [f"{plan.method}{how}: {plan.objective:.9g} s, and no plan less than {plan.lower_bound:.9g}"]
    if plan.reason:
        lines.append(f"  x {plan.reason}")
    for block, (device, hz) in enumerate(zip(plan.devices, plan.bandwidth_hz, strict=True)):
        compute_s = problem["compute_s"][device][block]
        sent_s = problem["block_bits"] / (hz * problem["spectral_efficiency"][device])
        lines.append(f"  block {block}  device {device}  {hz:12.3f} Hz  {compute_s:.6f} + {sent_s:.6f} s")
    for number in (0, 9, 49, 199) if plan.trace else ():
        step = (plan.trace or ())[number]
        lines.append(f"  iteration {number}: {step.dual_s:.6f} <= {step.primal_s:.6f}, best {step.best_s:.6f}")
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize("method", SUMMARIES)
def test_joint(method: str) -> None:
    """The plan is the one that was looked at."""
    same_as_golden(f"solve-deft-joint-{method}.txt", text(DRAWN, solve(wire.load(Problem, DRAWN, "p"), method=method)))


@pytest.mark.parametrize("method", ["crunch", "bisection"])
def test_the_papers_example(method: str) -> None:
    """The plan of the paper's worked example."""
    problem = example(1e6)
    same_as_golden(f"solve-deft-example-{method}.txt", text(wire.dump(problem), solve(problem, method=method)))
