"""The paper's heuristics balanced-greedy and random-fcfs."""

import random

import pytest

from fleetune.solving.split.instance import Instance
from fleetune.solving.split.methods.baselines import (
    balanced_assignment,
    balanced_greedy,
    random_assignment,
    random_fcfs,
)
from fleetune.solving.split.schedule import SearchOptions, first_come_first_served, schedule_helpers, verify
from tests.support.solving.named_tuples import changed
from tests.support.solving.split import reference
from tests.support.solving.split.problems import random_problem, scenario_problem, with_memory


def test_balanced_by_hand() -> None:
    """Load is the number of clients: in turn, ties to the first helper, past the one without a link or room."""
    assert balanced_assignment(Instance.from_problem(with_memory((9, 9), (1, 1, 1, 1)))) == [0, 1, 0, 1]
    assert balanced_assignment(Instance.from_problem(with_memory((9, 9, 9), (1, 5, 1, 1), ((0, 0), (1, 1))))) == [
        1,
        0,
        2,
        0,
    ]
    assert balanced_assignment(Instance.from_problem(with_memory((4, 9), (3, 3, 2, 3)))) == [0, 1, 1, 1]
    assert balanced_assignment(Instance.from_problem(with_memory((3, 3), (1, 1, 2, 2)))) == [0, 1, 0, 1]


def test_balanced_where_the_greedy_way_is_a_dead_end() -> None:
    """If the greedy assignment fails, clients are assigned so that the fullest helper has the fewest."""
    instance = Instance.from_problem(with_memory((3, 3), (1, 1, 3)))
    assert balanced_assignment(instance) is None
    plan = balanced_greedy(instance)
    verify(instance, plan.helper, plan.rows)
    assert sorted(map(list(plan.helper).count, (0, 1))) == [1, 2]


@pytest.mark.parametrize("preemptive", [False, True])
def test_valid_wherever_anything_is(preemptive: bool) -> None:
    """200 problems with hardly any room: both methods find a schedule, first come first served, nothing interrupted."""
    for seed in range(200):
        problem = random_problem(seed, 1 + seed % 6, 1 + seed % 3, preemptive=preemptive, link=0.3, room=1.2, switch=2)
        if not reference.assignments(problem):
            continue
        instance = Instance.from_problem(problem)
        for plan in (balanced_greedy(instance), random_fcfs(instance, SearchOptions(seed))):
            verify(changed(instance, preemptive=False), plan.helper, plan.rows)
            assert plan.rows == schedule_helpers(instance, plan.helper, first_come_first_served)
            assert plan.deterministic


def test_random_is_random_by_seed() -> None:
    """The same seed gives the same assignment; over many seeds every feasible one occurs."""
    problem = random_problem(2, 4, 2, preemptive=False, room=2.0)
    instance, all_of_them = Instance.from_problem(problem), set(reference.assignments(problem))
    met = {tuple(random_fcfs(instance, SearchOptions(seed)).helper) for seed in range(300)}
    assert met == all_of_them
    assert random_fcfs(instance, SearchOptions(7)) == random_fcfs(instance, SearchOptions(7))


def test_random_where_room_is_scarce() -> None:
    """If random assignment fails for lack of memory, different feasible assignments are still drawn."""
    memory = (7.0, 7.0, 5.0, 5.0, 3.0, 3.0, 3.0, 3.0, 1.0, 1.0, 1.0, 1.0)
    instance = Instance.from_problem(with_memory((20.0, 20.0), memory))
    met = {tuple(random_assignment(instance, random.Random(seed))) for seed in range(20)}
    assert len(met) > 10
    for helper in met:
        verify(instance, helper, schedule_helpers(instance, helper, first_come_first_served))


def test_large() -> None:
    """1000 clients on 100 helpers give valid schedules."""
    instance = Instance.from_problem(scenario_problem(1, 1000, 100, preemptive=False))
    for plan in (balanced_greedy(instance), random_fcfs(instance, SearchOptions(1))):
        verify(instance, plan.helper, plan.rows)
