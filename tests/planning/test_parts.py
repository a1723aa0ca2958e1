"""Sample allocation, optimal cuts, warm-ups and group costs against brute force."""

from itertools import combinations, product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fleetune.errors import Refused
from fleetune.planning import Problem
from fleetune.planning.run_costs import GroupCosts, RunCosts
from fleetune.solving.hpp.chain_cuts import best_cuts
from fleetune.solving.hpp.problem import warmups
from fleetune.solving.hpp.sample_allocation import allocate
from tests.planning.instances import tiny

TIMES = st.integers(0, 12).map(float)


@st.composite
def dealings(draw: st.DrawFn) -> tuple[list[list[float]], list[int], int]:
    """Times of up to 3 devices for up to 6 samples, growing or not, and how many each may take."""
    samples, devices = draw(st.integers(1, 6)), draw(st.integers(1, 3))
    grows = draw(st.booleans())
    rows = [draw(st.lists(TIMES, min_size=samples, max_size=samples)) for _ in range(devices)]
    return [sorted(r) if grows else r for r in rows], [draw(st.integers(0, 7)) for _ in rows], samples


@settings(max_examples=300, deadline=None)
@given(dealings())
def test_no_allocation_has_a_faster_slowest_device(given: tuple[list[list[float]], list[int], int]) -> None:
    """The allocation is optimal among all; None is returned exactly where none exists."""
    seconds, most, samples = given
    ways = [
        y
        for y in product(range(1, samples + 1), repeat=len(most))
        if sum(y) == samples and all(a <= b for a, b in zip(y, most, strict=True))
    ]
    dealt = allocate(seconds, most, samples)
    assert (dealt is None) == (not ways)
    if dealt is not None:
        assert tuple(dealt) in ways

        def slowest(y: tuple[int, ...]) -> float:
            return max(row[k - 1] for row, k in zip(seconds, y, strict=True))

        assert slowest(tuple(dealt)) == min(map(slowest, ways))


def test_samples_follow_speed() -> None:
    """Four samples on devices of 1, 2 and 4 s each: 2, 1, 1 keeps the slowest at 4 s."""
    seconds = [[pace * y for y in range(1, 5)] for pace in (1.0, 2.0, 4.0)]
    assert allocate(seconds, [4, 4, 4], 4) == [2, 1, 1]


@st.composite
def chains(draw: st.DrawFn) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Costs of every run of up to 6 blocks in up to 4 parts, some impossible, and of every cut."""
    blocks, parts = draw(st.integers(1, 6)), draw(st.integers(1, 4))
    cost = st.one_of(TIMES, st.just(float("inf")))
    runs = []
    for _ in range(parts):
        matrix = np.full((blocks + 1, blocks + 1), np.inf)
        for i, j in combinations(range(blocks + 1), 2):
            matrix[i, j] = draw(cost)
        runs.append(matrix)
    cuts = [np.array(draw(st.lists(TIMES, min_size=blocks + 1, max_size=blocks + 1))) for _ in range(parts - 1)]
    return runs, cuts


@settings(max_examples=300, deadline=None)
@given(chains())
def test_no_cuts_have_a_cheaper_dearest_part(chain: tuple[list[np.ndarray], list[np.ndarray]]) -> None:
    """The cuts are optimal among all; ties have the least sum."""
    runs, crossing = chain
    blocks, parts = runs[0].shape[0] - 1, len(runs)

    def price(edges: tuple[int, ...]) -> tuple[float, float]:
        costs = [runs[p][edges[p], edges[p + 1]] for p in range(parts)]
        costs += [crossing[p][edges[p + 1]] for p in range(parts - 1)]
        return float(max(costs)), float(sum(costs))

    ways = [(0, *inner, blocks) for inner in combinations(range(1, blocks), parts - 1)]
    best = min((price(edges) for edges in ways), default=(float("inf"), 0.0))
    edges = best_cuts(parts, runs.__getitem__, crossing.__getitem__)
    assert (edges is None) == (best[0] == float("inf"))
    if edges is not None:
        assert price(tuple(edges)) == pytest.approx(best)


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        ("2(P-p)-1", [5, 3, 1]),
        ("2(P-p)", [6, 4, 2]),
        ("P-p", [3, 2, 1]),
        ("2(P-p)+1", [7, 5, 3]),
        ((9, 4, 4), [9, 4, 4]),
    ],
)
def test_warmups_of_three_segments(policy: str | tuple[int, ...], expected: list[int]) -> None:
    """Each policy as written, first segment first; a list as given."""
    assert warmups(policy, 3, 8) == expected


@pytest.mark.parametrize(
    ("policy", "words"),
    [
        ("P", "'P' is not known; allowed are 2\\(P-p\\)-1, "),
        ((1, 1), "2 entries for 3 segments"),
        ((2, 1, 0), "an entry below 1"),
        ((1, 2, 1), "increases towards the last segment"),
    ],
)
def test_warmups_that_cannot_be_are_refused(policy: str | tuple[int, ...], words: str) -> None:
    """The message says what is allowed."""
    with pytest.raises(Refused, match=words):
        warmups(policy, 3, 8)


def test_warmups_beyond_the_micro_batches_may_differ() -> None:
    """Capped at 2 micro-batches, 5, 9, 1 is 2, 2, 1: it does not increase."""
    assert warmups((5, 9, 1), 3, 2) == [5, 9, 1]


@settings(max_examples=60, deadline=None)
@given(tiny(monotone=False), st.integers(1, 2))
def test_a_group_is_dealt_the_same_for_all_runs_at_once_as_for_each_alone(problem: Problem, kept: int) -> None:
    """The matrix of slowest members holds, run by run, what `shares` gives, and infinity where it gives nothing."""
    group = tuple(times.device for times in problem.profile.times)
    if len(group) > problem.micro_batch_samples:
        return
    costs = RunCosts(problem)
    runs = GroupCosts(costs)
    matrix = runs.seconds(group, kept)
    for i, j in combinations(range(costs.blocks + 1), 2):
        shares = runs.shares(group, kept, i, j)
        if shares is None or matrix[i, j] == np.inf:
            assert len(group) == 1 or shares is None and matrix[i, j] == np.inf
            continue
        each = [costs.seconds(device, y)[i, j] for device, y in zip(group, shares, strict=True)]
        assert matrix[i, j] == pytest.approx(max(each), rel=1e-9)
