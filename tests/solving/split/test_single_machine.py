"""Single-machine schedules are optimal: the polynomial preemptive rules and branch and bound, against brute force."""

import itertools
import random
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fleetune.solving.split.instance import Instance
from fleetune.solving.split.preemptive import Job, Span, minimise_max_cost, schedule_backwards
from fleetune.solving.split.schedule import BACKWARD, FORWARD, TaskRow, first_come_first_served, makespan, verify
from fleetune.solving.split.single_machine import INFINITE_TIME, SingleMachine
from tests.support.solving.split.problems import random_problem, scenario_problem
from tests.support.solving.split.reference import on_one_helper

JOBS = st.lists(st.builds(Job, st.integers(0, 6), st.integers(1, 3), st.integers(0, 6)), min_size=1, max_size=4)
BUSY = st.lists(st.booleans(), max_size=8).map(lambda slots: [(t, t + 1) for t, busy in enumerate(slots) if busy])


def cost(jobs: list[Job], spans: list[list[Span]]) -> int:
    """Return the largest end + tail."""
    return max(ran[-1][1] + job.tail for job, ran in zip(jobs, spans, strict=True))


def check(jobs: list[Job], busy: list[Span], spans: list[list[Span]]) -> None:
    """Assert that each job runs whole, after its release, in separate ascending pieces, one job at a time."""
    for job, ran in zip(jobs, spans, strict=True):
        assert sum(end - start for start, end in ran) == job.length
        assert ran[0][0] >= job.release
        assert all(one[1] < other[0] for one, other in itertools.pairwise(ran))
    taken = sorted([*busy, *(span for ran in spans for span in ran)])
    assert all(one[1] <= other[0] for one, other in itertools.pairwise(taken))


def least_cost(jobs: list[Job], busy: list[Span]) -> int:
    """Return the least cost by trying every job or none in each free slot."""
    closed = {t for start, end in busy for t in range(start, end)}
    last = max(job.release for job in jobs) + sum(job.length for job in jobs) + len(closed)

    @cache
    def least(now: int, left: tuple[int, ...]) -> int:
        if not any(left):
            return 0
        if now > last:
            return 10**9
        found = least(now + 1, left)
        for k, job in enumerate(jobs):
            if now not in closed and left[k] and job.release <= now:
                after = (*left[:k], left[k] - 1, *left[k + 1 :])
                found = min(found, max(now + 1 + job.tail if not after[k] else 0, least(now + 1, after)))
        return found

    return least(0, tuple(job.length for job in jobs))


@settings(max_examples=300, deadline=None)
@given(JOBS, BUSY)
def test_optimal(jobs: list[Job], busy: list[Span]) -> None:
    """The schedule costs as little as the best assignment of free slots to jobs."""
    spans = minimise_max_cost(jobs, busy)
    check(jobs, busy, spans)
    assert cost(jobs, spans) == least_cost(jobs, busy)


@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.builds(Job, st.integers(0, 40), st.integers(1, 9), st.integers(0, 40)), min_size=1, max_size=12),
    st.lists(st.integers(0, 60), max_size=12, unique=True).map(sorted),
    st.randoms(use_true_random=False),
)
def test_never_worse_than_a_list(jobs: list[Job], cuts: list[int], rng: random.Random) -> None:
    """No random priority list finishes earlier, and Horn's rule finishes just as early."""
    busy = [(a, b) for a, b in zip(cuts[::2], cuts[1::2], strict=False)]
    spans = minimise_max_cost(jobs, busy)
    check(jobs, busy, spans)
    random_lists = [rng.sample(range(len(jobs)), len(jobs)) for _ in range(3)]
    longest_tail_first = sorted(range(len(jobs)), key=lambda k: -jobs[k].tail)
    assert all(cost(jobs, spans) <= listed(jobs, busy, order) for order in random_lists)
    assert cost(jobs, spans) == listed(jobs, busy, longest_tail_first)


def listed(jobs: list[Job], busy: list[Span], order: list[int]) -> int:
    """Return the cost if every free slot goes to the first job of `order` that is released and not done."""
    closed = {t for start, end in busy for t in range(start, end)}
    left, worst, now = [job.length for job in jobs], 0, 0
    while any(left):
        if now not in closed:
            k = next((k for k in order if left[k] and jobs[k].release <= now), None)
            if k is not None:
                left[k] -= 1
                worst = max(worst, now + 1 + jobs[k].tail)
        now += 1
    return worst


def test_worked_example_of_the_paper() -> None:
    """Figure 4 in the numbers that its text gives: blocks {1, 4, 2, 3} to 8 and {5} to 10; client 4 is put last, then
    client 2; client 3 runs upon arrival and is the last to finish, at 14."""
    jobs = [Job(0, 2, 5), Job(3, 2, 3), Job(4, 2, 8), Job(1, 2, 1), Job(9, 1, 2)]
    spans = minimise_max_cost(jobs)
    assert spans == [[(0, 2)], [(3, 4), (6, 7)], [(4, 6)], [(2, 3), (7, 8)], [(9, 10)]]
    assert [ran[-1][1] + job.tail for job, ran in zip(jobs, spans, strict=True)] == [7, 10, 14, 9, 12]


def test_busy_spans_by_hand() -> None:
    """A job that arrives in a busy span waits for its end, and one that meets a busy span continues after it."""
    assert minimise_max_cost([Job(3, 4, 0)], [(2, 5), (7, 9), (9, 10)]) == [[(5, 7), (10, 12)]]
    assert minimise_max_cost([Job(0, 2, 0)], [(0, 3)]) == [[(3, 5)]]
    assert minimise_max_cost([Job(0, 2, 0)], [(2, 3)]) == [[(0, 2)]]
    assert minimise_max_cost([Job(3, 2, 0)], [(0, 3)]) == [[(3, 5)]]
    assert minimise_max_cost([], [(0, 3)]) == []


def test_large_times_and_many_jobs() -> None:
    """1000 jobs with times of 10^9 are scheduled without counting slots."""
    rng = random.Random(5)
    jobs = [Job(rng.randrange(10**9), rng.randrange(1, 10**6), rng.randrange(10**9)) for _ in range(1000)]
    busy = [(k * 10**6, k * 10**6 + 5 * 10**5) for k in range(1000)]
    check(jobs, busy, minimise_max_cost(jobs, busy))


@pytest.mark.parametrize("seed", range(40))
def test_with_backwards(seed: int) -> None:
    """Backwards after forwards in any order are valid, released l + l' after their forward, and optimal."""
    rng = random.Random(seed)
    instance = Instance.from_problem(random_problem(seed, 4, 1, preemptive=True, room=9.0))
    forwards, now = [], 0
    for j in rng.sample(range(4), 4):
        start = max(now, int(instance.release[0, j])) + rng.randrange(2)
        now = start + int(instance.forward[0, j])
        forwards.append(TaskRow(j, FORWARD, start, now))
    rows = schedule_backwards(instance, 0, forwards)
    verify(instance, [0] * 4, rows)
    ends = {row.client: row.end for row in forwards}
    jobs = [
        Job(ends[j] + int(instance.turnaround[0, j]), int(instance.backward[0, j]), int(instance.tail[0, j]))
        for j in range(4)
    ]
    assert makespan(instance, [0] * 4, rows) == least_cost(jobs, [(row.start, row.end) for row in forwards])
    if all(row in forwards for row in first_come_first_served(instance, 0, range(4)) if row.direction == FORWARD):
        assert makespan(instance, [0] * 4, rows) <= makespan(
            instance, [0] * 4, first_come_first_served(instance, 0, range(4))
        )
    assert sum(row.direction == BACKWARD for row in rows) >= 4


@pytest.mark.parametrize("switch", [0, 2])
@pytest.mark.parametrize("preemptive", [False, True])
def test_least(preemptive: bool, switch: int) -> None:
    """The schedule is valid and, where proven, optimal; the bound is never above it."""
    proven = 0
    for seed in range(40):
        clients = 2 + seed % 2 if preemptive else 2 + seed % 3
        longest = 2 if preemptive and clients == 3 else 3
        problem = random_problem(seed, clients, 1, preemptive=preemptive, longest=longest, switch=switch, room=9)
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
    """A search below the optimum finds nothing, and its bound proves that there is nothing."""
    for seed in range(20):
        problem = scenario_problem(seed, 5, 1, preemptive=preemptive)
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
    """A helper without clients has makespan 0."""
    machine = SingleMachine(Instance.from_problem(scenario_problem(0, 3, 2)), 1)
    assert machine.solve([], nodes=10).value == 0
