"""Kind deft through the common interface: defaults, JSON, determinism, summary, golden plans."""

import json
import subprocess
import sys
from typing import Any

import pytest

from fleetune import solving
from fleetune.contracts import json_io
from fleetune.solving.lola_deft import describe_plan
from fleetune.solving.lola_deft.methods import SUMMARIES
from fleetune.solving.lola_deft.problem import Problem, Solution
from fleetune.solving.lola_deft.solve import solve
from tests.support.golden import same_as_golden
from tests.support.solving.lola_deft.instances import drawn, example, plain, problem
from tests.support.solving.lola_deft.reference import check


@pytest.mark.parametrize(("bandwidth", "method"), [("joint", "bisection"), ("equal", "crunch")])
def test_default(bandwidth: str, method: str) -> None:
    """The default is the exact method for the bandwidth mode."""
    text = json.dumps(plain(bandwidth=bandwidth))
    kind, asked = solving.read(text, "p.json", solving.kinds())
    plan = solving.document(solving.solve(kind, asked))
    assert plan["method"] == method
    check(json.loads(text), plan)


def test_the_plan_is_the_contracts_json() -> None:
    """The plan's keys are the contract's, in order, then further ones; it can be read again."""
    common = ["kind", "method", "feasible", "objective", "lower_bound", "solve_s", "deterministic"]
    decided = ["devices", "bandwidth_hz"]
    plans = {method: solving.document(solve(problem(), method=method)) for method in SUMMARIES}
    assert list(plans["bisection"]) == [*common, *decided]
    assert list(plans["crunch"]) == [*common, *decided, "solved_by"]
    assert list(plans["dual-ascent"]) == [*common, *decided, "trace"]
    assert list(plans["channel-aware"]) == [*common[:3], "reason", *common[3:], *decided]
    for plan in plans.values():
        json_io.parse(Solution, json.dumps(plan, allow_nan=False), "plan.json")


@pytest.mark.parametrize("method", SUMMARIES)
def test_same_problem_same_plan(method: str) -> None:
    """The plan depends neither on seed nor time limit, nor on the process's hash seed."""
    asked = json_io.load(Problem, drawn(9, 8, 5), "p.json")

    def told(plan: Solution) -> str:
        return json.dumps(solving.document(plan) | {"solve_s": 0})

    here = told(solve(asked, method=method))
    assert here == told(solve(asked, method=method, seed=5, time_limit_s=0.001))
    program = (
        "import json, sys; from fleetune import solving; "
        "kind, asked = solving.read(sys.stdin.buffer.read(), 'p', solving.kinds()); "
        f"print(json.dumps(solving.document(solving.solve(kind, asked, method={method!r})) | {{'solve_s': 0}}))"
    )
    ran = subprocess.run(
        [sys.executable, "-c", program],
        input=json_io.text(asked).encode(),
        capture_output=True,
        check=True,
        env={"PYTHONHASHSEED": "123"},
    )
    assert ran.stdout.decode().strip() == here


def test_unknown_method() -> None:
    """An unknown method is refused with the known ones."""
    with pytest.raises(solving.api.Refused, match="method: 'magic' is not known; allowed are bisection, crunch"):
        solve(problem(), method="magic")


def test_describe_plan() -> None:
    """The summary shows blocks, devices and parts of the band; long lists are cut."""
    assert describe_plan(solve(problem(bandwidth="equal"))) == "2 blocks on devices 2 1 with 5e+05 Hz"
    assert describe_plan(solve(problem())) == "2 blocks on devices 2 1 with 2.679e+05 to 7.321e+05 Hz"
    assert describe_plan(solve(problem(compute_s=((1.0,),) * 3, block_memory_bytes=(1.0,)))).startswith(
        "1 block on device 2"
    )
    many = solve(json_io.load(Problem, drawn(1, 20, 15), "p"))
    assert " ... with " in describe_plan(many)


def test_no_solver_is_imported_before_it_is_asked() -> None:
    """Listing kinds and reading problems does not import scipy."""
    program = "import sys; from fleetune import solving; solving.kinds(); assert 'scipy.optimize' not in sys.modules"
    subprocess.run([sys.executable, "-c", program], check=True)


DRAWN = drawn(4, 8, 4)


def text(problem: dict[str, Any], plan: Solution) -> str:
    """Draw the cost, a line per block, and iterations of the trace."""
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
    """The plan equals the golden file."""
    same_as_golden(
        f"solve-deft-joint-{method}.txt", text(DRAWN, solve(json_io.load(Problem, DRAWN, "p"), method=method))
    )


@pytest.mark.parametrize("method", ["crunch", "bisection"])
def test_the_papers_example(method: str) -> None:
    """The plan of the paper's example equals the golden file."""
    problem = example(1e6)
    same_as_golden(f"solve-deft-example-{method}.txt", text(json_io.dump(problem), solve(problem, method=method)))
