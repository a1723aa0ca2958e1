"""The two sub-problems of ADMM against every choice there is, and the windows that stand for slots."""

import itertools
import random
from fractions import Fraction

import numpy as np
import pytest

from fleetune.solving.split.admm_subproblems import (
    ForwardProblem,
    Multipliers,
    forward_makespan,
    solve_assignment,
    solve_schedule,
    windows,
)
from fleetune.solving.split.candidate import SearchOptions
from fleetune.solving.split.instance import Ints

Amounts = tuple[tuple[int, ...], ...]


def drawn(seed: int, *, alike: bool = False) -> tuple[ForwardProblem, Multipliers]:
    """2 helpers and 3 clients; some assignment, multipliers as if after some rounds. alike: forwards can be shared."""
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
    """Eq. (16) as it is printed, doubled."""
    violated = amounts - y * forward.length
    return int(2 * makespan + 2 * (at.dual * violated).sum() + at.rho * np.abs(violated).sum())


def slot_by_slot(forward: ForwardProblem, tail: Ints, amounts: Ints) -> int:
    """max c^f by giving each slot to the released client with the longest tail."""
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
    """All whole amounts that keep to eq. (20)."""
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
    """Line 2: the least eq. (16) of all amounts, forwards shared among helpers included."""
    shared = 0
    for seed in range(25):
        forward, at = drawn(seed, alike=alike)
        tail = (at.y * forward.tail).sum(axis=0)
        found, makespan = solve_schedule(forward, at, SearchOptions(), None)
        assert makespan == slot_by_slot(forward, tail, found)
        costs = [lagrangian(forward, at, a, at.y, slot_by_slot(forward, tail, a)) for a in shares(forward)]
        assert lagrangian(forward, at, found, at.y, makespan) == min(costs)
        shared += int(((found > 0).sum(axis=0) > 1).any())
    assert shared > 0 or not alike


def test_assign_is_optimal() -> None:
    """Line 3: the least eq. (16) of all assignments within memory and links."""
    for seed in range(40):
        forward, at = drawn(seed, alike=seed % 2 == 0)
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
    """The largest start + tail + work in it of any window is when the best schedule of the slots ends."""
    for seed in range(100):
        forward, _ = drawn(seed)
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
    """Where eq. (20) has too large a common multiple, each client's forward is on one helper."""
    forward, at = drawn(1)
    large = forward._replace(
        length=np.array([[4093, 4091, 4079], [4057, 4051, 4049]]) * 1000, linked=forward.length >= 0
    )
    amounts, _ = solve_schedule(large, at._replace(dual=at.dual * 0), SearchOptions(), None)
    assert ((amounts == 0) | (amounts == large.length)).all()
    assert ((amounts > 0).sum(axis=0) == 1).all()
