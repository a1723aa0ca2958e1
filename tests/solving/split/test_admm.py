"""The paper's decomposition as a whole."""

import numpy as np
import pytest

from fleetune.solving.split.candidate import SearchOptions
from fleetune.solving.split.instance import Instance
from fleetune.solving.split.methods import admm
from fleetune.solving.split.methods.baselines import balanced_greedy
from fleetune.solving.split.schedule import makespan, verify
from tests.solving.split import brute
from tests.solving.split.instances import drawn, scenario, tiny


def made(instance: Instance, seed: int = 0) -> int:
    """The makespan of a proven schedule."""
    plan = admm.plan(instance, SearchOptions(seed))
    verify(instance, plan.helper, plan.rows)
    assert plan.deterministic
    return makespan(instance, plan.helper, plan.rows)


def test_near_the_optimum() -> None:
    """100 tiny problems: never below brute force, optimal in most, and near it on average as the paper reports."""
    gaps = []
    for seed in range(100):
        problem = tiny(seed, preemptive=True, longest=3, delay=4, link=0.1)
        optimum = brute.best(problem)
        if optimum is not None:
            gaps.append(made(Instance.from_problem(problem)) / optimum - 1)
    assert min(gaps) == 0
    assert sum(gap == 0 for gap in gaps) > 0.5 * len(gaps)
    assert sum(gaps) / len(gaps) < 0.1


def test_switch_costs() -> None:
    """Where an interruption costs more than it gains, nothing is interrupted."""
    instance = Instance.from_problem(drawn(8, 8, 2, preemptive=True, longest=9, delay=20))
    assert len(admm.plan(instance).rows) > 16
    dear = instance._replace(switch_cost=np.array([1000, 1000]))
    assert len(admm.plan(dear).rows) == 16
    for seed in range(60):
        problem = tiny(seed, preemptive=True, switch=5)
        optimum = brute.best(problem)
        assert optimum is None or made(Instance.from_problem(problem)) >= optimum


@pytest.mark.parametrize(("clients", "helpers"), [(10, 2), (15, 5), (40, 5), (70, 10)])
def test_scale(clients: int, helpers: int) -> None:
    """The paper's sizes, in its style: valid, and better than the heuristic."""
    instance = Instance.from_problem(scenario(1, clients, helpers))
    greedy = balanced_greedy(instance)
    assert made(instance) < makespan(instance, greedy.helper, greedy.rows)


def test_the_unit_of_time_does_not_matter() -> None:
    """A thousand times finer units, of 10^9 in all: the same plan, but for what rounding to slots costs."""
    problem = scenario(3, 12, 3)
    fine = Instance.from_problem(problem)
    for field in ("release", "forward", "between", "backward", "tail", "turnaround_forward"):
        fine = fine._replace(**{field: getattr(fine, field) * 10**7})
    assert made(fine) <= 1.02 * 10**7 * made(Instance.from_problem(problem))


def test_huge_problems_have_fewer_windows() -> None:
    """300 clients on 30 helpers with times in ms: windows are kept to a number that can be solved, work is not."""
    instance = Instance.from_problem(scenario(1, 300, 30, slot_ms=1))
    forward = admm.in_slots(instance)
    assert admm.terms(forward) <= admm.MAX_TERMS < admm.terms(forward._replace(grid=1))
    assert forward.length[instance.linked].min() > 4
    assert admm.in_slots(Instance.from_problem(scenario(1, 40, 5))).grid == 1


def test_same_seed_same_plan() -> None:
    """Byte for byte, with little room."""
    instance = Instance.from_problem(drawn(5, 12, 3, preemptive=True, longest=9, delay=9, room=1.2))
    assert admm.plan(instance, SearchOptions(3)) == admm.plan(instance, SearchOptions(3))


def test_a_time_limit_is_told_of() -> None:
    """A plan in hand even where the clock has hardly begun, and not said to be reproducible."""
    instance = Instance.from_problem(scenario(1, 40, 5))
    plan = admm.plan(instance, SearchOptions(0, time_limit_s=0.01))
    verify(instance, plan.helper, plan.rows)
    assert not plan.deterministic
