"""dual-ascent: the paper's Algorithm 3, with its trace."""

import pytest

from fleetune.contracts import json_io
from fleetune.errors import Refused
from fleetune.solving.lola_deft.methods.dual_ascent import ITERATIONS
from fleetune.solving.lola_deft.problem import Problem
from fleetune.solving.lola_deft.solve import solve
from tests.support.solving.lola_deft.instances import drawn, problem, solved
from tests.support.solving.lola_deft.reference import best_s


@pytest.mark.parametrize("rows", ["deepen", "any", "even"])
@pytest.mark.parametrize("seed", range(8))
def test_trace(seed: int, rows: str) -> None:
    """Every dual value is at most the optimum, every primal at least; the best primal never rises, and is returned."""
    asked = drawn(seed, 4 + seed % 3, 2 + seed % 2, rows=rows)
    best, plan = best_s(asked), solved(asked, "dual-ascent")
    trace = plan["trace"]
    assert len(trace) == ITERATIONS
    assert all(step["dual_s"] <= best * (1 + 1e-12) for step in trace)
    assert all(step["primal_s"] >= best * (1 - 1e-12) for step in trace)
    assert all(step["best_s"] <= step["primal_s"] for step in trace)
    assert all(one["best_s"] >= other["best_s"] for one, other in zip(trace, trace[1:], strict=False))
    assert plan["objective"] == pytest.approx(trace[-1]["best_s"], rel=1e-12)


def test_it_ascends() -> None:
    """The best dual value after all iterations is well above the first one, and above 0."""
    for seed in range(10):
        trace = solved(drawn(seed, 6, 4), "dual-ascent")["trace"]
        best = max(step["dual_s"] for step in trace)
        assert best > trace[0]["dual_s"]
        assert best > 0.3 * trace[-1]["best_s"]


def test_it_gains_on_equal_parts_and_comes_close() -> None:
    """Over many problems its plan is as good as CRUNCH's, mostly better, and within a tenth of the optimum."""
    against_even, against_best = [], []
    for seed in range(20):
        asked = drawn(seed, 12, 6)
        objective = solved(asked, "dual-ascent")["objective"]
        against_even.append(solved(asked, "crunch")["objective"] / objective)
        against_best.append(objective / solved(asked)["objective"])
    assert min(against_even) >= 1
    assert sorted(against_even)[10] > 1.03
    assert max(against_best) < 1.1


def test_equal_bandwidth_is_refused() -> None:
    """Equal bandwidth is refused with the method to use instead."""
    with pytest.raises(Refused, match='it divides the band, and bandwidth is "equal"; use crunch, or give a problem'):
        solve(problem(bandwidth="equal"), method="dual-ascent")


def test_scale() -> None:
    """64 blocks on 100 devices: the plan lies between the optimum and equal parts."""
    asked = drawn(1, 100, 64)
    plan = solve(json_io.load(Problem, asked, "p"), method="dual-ascent")
    assert solved(asked)["objective"] <= plan.objective <= solved(asked, "crunch")["objective"]
