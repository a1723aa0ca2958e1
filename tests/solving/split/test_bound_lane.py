"""One helper by branch and bound beside brute force."""

import pytest

from fleetune.solving.split.instance import Instance
from fleetune.solving.split.schedule import makespan, verify
from fleetune.solving.split.single_machine import INFINITE_TIME, SingleMachine
from tests.solving.split.brute import on_one_helper
from tests.solving.split.instances import drawn, scenario


@pytest.mark.parametrize("switch", [0, 2])
@pytest.mark.parametrize("preemptive", [False, True])
def test_least(preemptive: bool, switch: int) -> None:
    """The schedule is valid and, where proven, the least of all; the bound is never above it."""
    proven = 0
    for seed in range(40):
        clients = 2 + seed % 2 if preemptive else 2 + seed % 3
        longest = 2 if preemptive and clients == 3 else 3
        problem = drawn(seed, clients, 1, preemptive=preemptive, longest=longest, switch=switch, room=9)
        instance, everyone = Instance.from_problem(problem), list(range(clients))
        found = SingleMachine(instance, 0).solve(everyone, nodes=5000)
        verify(instance, [0] * clients, found.rows)
        assert makespan(instance, [0] * clients, found.rows) == found.value
        least = on_one_helper(problem, 0, tuple(everyone))
        assert found.bound <= least <= found.value
        assert not found.proven or found.value == least
        proven += found.proven
    assert proven == 40 if not (preemptive and switch) else proven >= 35


@pytest.mark.parametrize("preemptive", [False, True])
def test_decision(preemptive: bool) -> None:
    """Asked for less than the least there is, nothing is found and the bound says that there is nothing."""
    for seed in range(20):
        problem = scenario(seed, 5, 1, preemptive=preemptive)
        machine = SingleMachine(Instance.from_problem(problem), 0)
        best = machine.solve(range(5), nodes=5000)
        assert best.proven
        below = machine.solve(range(5), nodes=5000, below=best.value)
        assert below.value == INFINITE_TIME
        assert below.rows == []
        assert below.bound == best.value
        assert machine.bound(range(5)) <= best.value
        assert machine.solve(range(5), nodes=0).value >= best.value


def test_nothing() -> None:
    """A helper without clients is done at 0."""
    machine = SingleMachine(Instance.from_problem(scenario(0, 3, 2)), 1)
    assert machine.solve([], nodes=10).value == 0
