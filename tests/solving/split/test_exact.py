"""`exact` and `auto` beside brute force on tiny problems."""

import pytest

from fleetune.errors import Infeasible
from fleetune.solving.split.benders import BendersMaster
from fleetune.solving.split.cp_model import improve_plan
from fleetune.solving.split.energetic import EnergeticBound
from fleetune.solving.split.instance import Instance
from fleetune.solving.split.methods.baselines import balanced_greedy
from fleetune.solving.split.schedule import makespan, verify
from fleetune.solving.split.schedule_cache import ScheduleCache, masks_of
from fleetune.solving.split.solve import solve
from tests.golden import same_as_golden
from tests.solving.split.brute import best
from tests.solving.split.contract import check
from tests.solving.split.instances import drawn, tiny


@pytest.mark.parametrize("method", ["exact", "auto"])
@pytest.mark.parametrize("switch", [0, 2])
@pytest.mark.parametrize("preemptive", [False, True])
def test_best_of_all(preemptive: bool, switch: int, method: str) -> None:
    """The plan keeps to the contract, is the best of all plans, and is proven; without one the problem is refused."""
    for seed in range(24):
        problem = tiny(seed, preemptive=preemptive, switch=switch, link=0.15, room=1.2 + seed % 2)
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
def test_whole(preemptive: bool, switch: int) -> None:
    """The whole model alone finds the best plan from a poor one, and proves that there is none better."""
    improvements = 0
    for seed in range(30):
        problem = tiny(seed, preemptive=preemptive, switch=switch, link=0.1)
        least = best(problem)
        if least is None:
            continue
        instance = Instance.from_problem(problem)
        start = balanced_greedy(instance)
        value = makespan(instance, start.helper, start.rows)
        master = BendersMaster(EnergeticBound(instance), ScheduleCache(instance))
        limits = (20.0, float("inf"))
        answer = improve_plan(master, masks_of(instance, start.helper), start.rows, (0, value), limits)
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
def test_golden(preemptive: bool) -> None:
    """The plan is the one that was looked at."""
    problem = drawn(3, 7, 2, preemptive=preemptive, longest=6, delay=12, switch=2)
    name = f"solve-split-exact-{'preemptive' if preemptive else 'whole'}.txt"
    same_as_golden(name, drawing(solve(problem, method="exact")))


def drawing(plan) -> str:  # type: ignore[no-untyped-def]
    """Makespan and bound, then the tasks of each helper, forwards as f, backwards as b."""
    lines = [f"{plan.method}: makespan {plan.objective}, and no plan less than {plan.lower_bound}"]
    for i in range(len(plan.order)):
        rows = [piece for piece in plan.schedule if plan.helper[piece.client] == i]
        tasks = " ".join(f"{piece.direction[0]}{piece.client}[{piece.start},{piece.end})" for piece in rows)
        lines.append(f"  helper {i}: {tasks}")
    return "\n".join(lines) + "\n"
