"""The paper's decomposition as a whole."""

import numpy as np
import pytest

from fleetune.solving.split.case import Case
from fleetune.solving.split.draft import Effort
from fleetune.solving.split.methods import admm, balanced_greedy
from fleetune.solving.split.schedule import makespan, verify
from tests.solving.split import brute
from tests.solving.split.instances import drawn, scenario, tiny


def made(case: Case, seed: int = 0) -> int:
    """The makespan of a proven schedule."""
    plan = admm.plan(case, Effort(seed))
    verify(case, plan.helper, plan.rows)
    assert plan.deterministic
    return makespan(case, plan.helper, plan.rows)


def test_near_the_optimum() -> None:
    """100 tiny problems: never below brute force, optimal in most, and near it on average as the paper reports."""
    gaps = []
    for seed in range(100):
        problem = tiny(seed, preemptive=True, longest=3, delay=4, link=0.1)
        optimum = brute.best(problem)
        if optimum is not None:
            gaps.append(made(Case.of(problem)) / optimum - 1)
    assert min(gaps) == 0
    assert sum(gap == 0 for gap in gaps) > 0.5 * len(gaps)
    assert sum(gaps) / len(gaps) < 0.1


def test_switch_costs() -> None:
    """Where an interruption costs more than it gains, nothing is interrupted."""
    case = Case.of(drawn(8, 8, 2, preemptive=True, longest=9, delay=20))
    assert len(admm.plan(case).rows) > 16
    dear = case._replace(switch_cost=np.array([1000, 1000]))
    assert len(admm.plan(dear).rows) == 16
    for seed in range(60):
        problem = tiny(seed, preemptive=True, switch=5)
        optimum = brute.best(problem)
        assert optimum is None or made(Case.of(problem)) >= optimum


@pytest.mark.parametrize(("clients", "helpers"), [(10, 2), (15, 5), (40, 5), (70, 10)])
def test_scale(clients: int, helpers: int) -> None:
    """The paper's sizes, in its style: valid, and better than the heuristic."""
    case = Case.of(scenario(1, clients, helpers))
    greedy = balanced_greedy.plan(case)
    assert made(case) < makespan(case, greedy.helper, greedy.rows)


def test_the_unit_of_time_does_not_matter() -> None:
    """A thousand times finer units, of 10^9 in all: the same plan, but for what rounding to slots costs."""
    problem = scenario(3, 12, 3)
    fine = Case.of(problem)
    for field in ("release", "forward", "between", "backward", "tail", "turnaround_forward"):
        fine = fine._replace(**{field: getattr(fine, field) * 10**7})
    assert made(fine) <= 1.02 * 10**7 * made(Case.of(problem))


def test_huge_problems_have_fewer_windows() -> None:
    """300 clients on 30 helpers with times in ms: windows are kept to a number that can be solved, work is not."""
    case = Case.of(scenario(1, 300, 30, slot_ms=1))
    forward = admm.in_slots(case)
    assert admm.terms(forward) <= admm.MOST_TERMS < admm.terms(forward._replace(grid=1))
    assert forward.length[case.linked].min() > 4
    assert admm.in_slots(Case.of(scenario(1, 40, 5))).grid == 1


def test_same_seed_same_plan() -> None:
    """Byte for byte, with little room."""
    case = Case.of(drawn(5, 12, 3, preemptive=True, longest=9, delay=9, room=1.2))
    assert admm.plan(case, Effort(3)) == admm.plan(case, Effort(3))


def test_a_time_limit_is_told_of() -> None:
    """A plan in hand even where the clock has hardly begun, and not said to be reproducible."""
    case = Case.of(scenario(1, 40, 5))
    plan = admm.plan(case, Effort(0, time_limit_s=0.01))
    verify(case, plan.helper, plan.rows)
    assert not plan.deterministic
