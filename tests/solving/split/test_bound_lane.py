"""One helper by branch and bound beside brute force."""

import pytest

from fleetune.solving.split.case import Case
from fleetune.solving.split.lane import Lane
from fleetune.solving.split.schedule import makespan, verify
from fleetune.solving.split.windows import FAR
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
        case, everyone = Case.of(problem), list(range(clients))
        found = Lane(case, 0).solve(everyone, nodes=5000)
        verify(case, [0] * clients, found.rows)
        assert makespan(case, [0] * clients, found.rows) == found.value
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
        lane = Lane(Case.of(problem), 0)
        best = lane.solve(range(5), nodes=5000)
        assert best.proven
        below = lane.solve(range(5), nodes=5000, below=best.value)
        assert below.value == FAR
        assert below.rows == []
        assert below.bound == best.value
        assert lane.bound(range(5)) <= best.value
        assert lane.quick(range(5)).value >= best.value


def test_nothing() -> None:
    """A helper without clients is done at 0."""
    lane = Lane(Case.of(scenario(0, 3, 2)), 1)
    assert lane.solve([], nodes=10).value == 0
