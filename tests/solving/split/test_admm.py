"""The paper's ADMM decomposition, and its two sub-problems against enumeration."""

import itertools
import random
from fractions import Fraction

import numpy as np
import pytest

from fleetune.arrays import Ints
from fleetune.solving.split.instance import Instance
from fleetune.solving.split.methods import admm
from fleetune.solving.split.methods.admm import (
    ForwardProblem,
    Multipliers,
    forward_makespan,
    solve_assignment,
    solve_schedule,
    windows,
)
from fleetune.solving.split.methods.baselines import balanced_greedy
from fleetune.solving.split.schedule import SearchOptions, makespan, verify
from tests.support.solving.named_tuples import changed
from tests.support.solving.split import reference
from tests.support.solving.split.problems import random_problem, scenario_problem, tiny_problem


def verified_makespan(instance: Instance, seed: int = 0) -> int:
    """Return the makespan of a verified schedule."""
    plan = admm.plan(instance, SearchOptions(seed))
    verify(instance, plan.helper, plan.rows)
    assert plan.deterministic
    return makespan(instance, plan.helper, plan.rows)


def test_near_the_optimum() -> None:
    """100 tiny problems: never below brute force, optimal in most, and near it on average as the paper reports."""
    gaps = []
    for seed in range(100):
        problem = tiny_problem(seed, preemptive=True, longest=3, delay=4, link=0.1)
        optimum = reference.best(problem)
        if optimum is not None:
            gaps.append(verified_makespan(Instance.from_problem(problem)) / optimum - 1)
    assert min(gaps) == 0
    assert sum(gap == 0 for gap in gaps) > 0.5 * len(gaps)
    assert sum(gaps) / len(gaps) < 0.1


def test_switch_costs() -> None:
    """An interruption that costs more than it gains is not made."""
    instance = Instance.from_problem(random_problem(8, 8, 2, preemptive=True, longest=9, delay=20))
    assert len(admm.plan(instance).rows) > 16
    dear = changed(instance, switch_cost=np.array([1000, 1000]))
    assert len(admm.plan(dear).rows) == 16
    for seed in range(60):
        problem = tiny_problem(seed, preemptive=True, switch=5)
        optimum = reference.best(problem)
        assert optimum is None or verified_makespan(Instance.from_problem(problem)) >= optimum


@pytest.mark.parametrize(("clients", "helpers"), [(10, 2), (15, 5), (40, 5), (70, 10)])
def test_scale(clients: int, helpers: int) -> None:
    """At the paper's sizes, plans are valid and better than the heuristic's."""
    instance = Instance.from_problem(scenario_problem(1, clients, helpers))
    greedy = balanced_greedy(instance)
    assert verified_makespan(instance) < makespan(instance, greedy.helper, greedy.rows)


def test_the_unit_of_time_does_not_matter() -> None:
    """Units ten million times finer give the same plan up to the rounding to slots."""
    problem = scenario_problem(3, 12, 3)
    fine = Instance.from_problem(problem)
    for field in ("release", "forward", "turnaround", "backward", "tail", "turnaround_forward"):
        fine = changed(fine, **{field: getattr(fine, field) * 10**7})
    assert verified_makespan(fine) <= 1.02 * 10**7 * verified_makespan(Instance.from_problem(problem))


def test_huge_problems_have_fewer_windows() -> None:
    """300 clients on 30 helpers with times in ms: the number of windows stays solvable, work is not rounded away."""
    instance = Instance.from_problem(scenario_problem(1, 300, 30, slot_ms=1))
    forward = admm.to_slots(instance)
    assert admm.window_terms(forward) <= admm.MAX_TERMS < admm.window_terms(changed(forward, grid=1))
    assert forward.length[instance.linked].min() > 4
    assert admm.to_slots(Instance.from_problem(scenario_problem(1, 40, 5))).grid == 1


def test_same_seed_same_plan() -> None:
    """The same seed gives the same plan, also with little memory."""
    instance = Instance.from_problem(random_problem(5, 12, 3, preemptive=True, longest=9, delay=9, room=1.2))
    assert admm.plan(instance, SearchOptions(3)) == admm.plan(instance, SearchOptions(3))


def test_a_time_limit_is_told_of() -> None:
    """A tiny time limit still gives a plan, which is not called deterministic."""
    instance = Instance.from_problem(scenario_problem(1, 40, 5))
    plan = admm.plan(instance, SearchOptions(0, time_limit_s=0.01))
    verify(instance, plan.helper, plan.rows)
    assert not plan.deterministic


Amounts = tuple[tuple[int, ...], ...]


def random_subproblem(seed: int, *, alike: bool = False) -> tuple[ForwardProblem, Multipliers]:
    """Draw 2 helpers, 3 clients, an assignment and multipliers. alike: forwards take equally long on both helpers."""
    r = np.random.default_rng(seed)
    size = (2, 3)
    lengths = r.integers(1, 4, size) if not alike else np.full(size, 2 + seed % 3)
    linked = r.random(size) < 0.85
    linked[0, ~linked.any(axis=0)] = True
    forward = ForwardProblem(
        release=np.where(linked, r.integers(0, 5, size), 0),
        length=np.where(linked, lengths, 0),
        tail=np.where(linked, r.integers(0, 5, size), 0),
        linked=linked,
        helper_memory=np.array([3, 3]),
        client_memory=np.array([1, 1, 2]),
    )
    y = np.zeros(size, np.int64)
    for j in range(3):
        if seed % 4:
            y[r.choice(np.flatnonzero(linked[:, j])), j] = 1
    dual = np.where(linked, r.integers(-3, 4, size), 0)
    return forward, Multipliers(y, dual, 1 + seed % 2)


def lagrangian(forward: ForwardProblem, at: Multipliers, amounts: Ints, y: Ints, makespan: int) -> int:
    """Return eq. (16) as printed, doubled."""
    violated = amounts - y * forward.length
    return int(2 * makespan + 2 * (at.dual * violated).sum() + at.rho * np.abs(violated).sum())


def slot_by_slot(forward: ForwardProblem, tail: Ints, amounts: Ints) -> int:
    """Return max c^f if each slot goes to the released client with the longest tail."""
    longest = 0
    for i in range(2):
        left, now = amounts[i].tolist(), 0
        while any(left):
            ready = [j for j in range(3) if left[j] and forward.release[i, j] <= now]
            now += 1
            if ready:
                j = max(ready, key=lambda j: tail[j])
                left[j] -= 1
                longest = max(longest, now + int(tail[j])) if not left[j] else longest
    return longest


def shares(forward: ForwardProblem) -> list[Ints]:
    """Return all integral amounts that satisfy eq. (20)."""
    found = []
    ranges = [
        range(int(p) + 1) if ok else range(1) for p, ok in zip(forward.length.flat, forward.linked.flat, strict=True)
    ]
    for flat in itertools.product(*ranges):
        amounts = np.array(flat).reshape(2, 3)
        whole = all(
            sum(Fraction(int(amounts[i, j]), int(forward.length[i, j])) for i in range(2) if forward.linked[i, j]) == 1
            for j in range(3)
        )
        if whole:
            found.append(amounts)
    return found


@pytest.mark.parametrize("alike", [False, True])
def test_schedule_is_optimal(alike: bool) -> None:
    """Line 2 minimises eq. (16) over all amounts, including forwards shared among helpers."""
    shared = 0
    for seed in range(25):
        forward, at = random_subproblem(seed, alike=alike)
        tail = (at.y * forward.tail).sum(axis=0)
        found, makespan = solve_schedule(forward, at, SearchOptions(), None)
        assert makespan == slot_by_slot(forward, tail, found)
        costs = [lagrangian(forward, at, a, at.y, slot_by_slot(forward, tail, a)) for a in shares(forward)]
        assert lagrangian(forward, at, found, at.y, makespan) == min(costs)
        shared += int(((found > 0).sum(axis=0) > 1).any())
    assert shared > 0 or not alike


def test_assign_is_optimal() -> None:
    """Line 3 minimises eq. (16) over all assignments within memory and links."""
    for seed in range(40):
        forward, at = random_subproblem(seed, alike=seed % 2 == 0)
        amounts = random.Random(seed).choice(shares(forward))
        costs = []
        for helper in itertools.product(range(2), repeat=3):
            y = np.array([[int(helper[j] == i) for j in range(3)] for i in range(2)])
            if not (y & ~forward.linked).any() and (y @ forward.client_memory <= forward.helper_memory).all():
                costs.append(lagrangian(forward, at, amounts, y, 0))
        y = solve_assignment(forward, amounts, at, SearchOptions())
        if costs:
            assert lagrangian(forward, at, amounts, y, 0) == min(costs)
        else:
            assert (y == at.y).all()


def test_windows_stand_for_slots() -> None:
    """The largest start + tail + work of a window equals the makespan of the best slot schedule."""
    for seed in range(100):
        forward, _ = random_subproblem(seed)
        tail = np.random.default_rng(seed).integers(0, 5, 3)
        for amounts in shares(forward)[:10]:
            ends = 0
            for i in range(2):
                clients = np.flatnonzero(amounts[i]).tolist()
                found = list(windows(forward.release[i].tolist(), tail.tolist(), clients))
                assert len({tuple(sorted(window.clients)) for window in found}) == len(found)
                for window in found:
                    ends = max(ends, window.start + window.tail + int(amounts[i, window.clients].sum()))
                coarse = list(windows(forward.release[i].tolist(), tail.tolist(), clients, 3))
                assert all(window in found for window in coarse), "a grid only leaves windows out"
            assert ends == slot_by_slot(forward, tail, amounts) == forward_makespan(forward, tail, amounts)


def test_forwards_of_awkward_lengths_stay_whole() -> None:
    """If eq. (20) has too large a common multiple, each client's forward is on one helper."""
    forward, at = random_subproblem(1)
    large = changed(
        forward, length=np.array([[4093, 4091, 4079], [4057, 4051, 4049]]) * 1000, linked=forward.length >= 0
    )
    amounts, _ = solve_schedule(large, changed(at, dual=at.dual * 0), SearchOptions(), None)
    assert ((amounts == 0) | (amounts == large.length)).all()
    assert ((amounts > 0).sum(axis=0) == 1).all()
