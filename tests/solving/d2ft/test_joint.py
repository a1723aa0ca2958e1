"""Numbers of operations in `joint`: tables and cutting planes agree with each other and with a table over
capacities."""

import numpy as np
import pytest
from numpy.typing import NDArray

from fleetune.solving.d2ft.methods import joint
from fleetune.solving.d2ft.solve import solve
from fleetune.solving.d2ft.transportation import Scores, sets_at_split
from tests.support.solving.d2ft.instances import alike
from tests.support.solving.d2ft.reference import check

Floats = NDArray[np.float64]


def random_scores(seed: int, subnets: int, size: int) -> Scores:
    """Draw scores: real, few values, equal along rows, or proportional."""
    draw = np.random.default_rng(seed)
    a, w = draw.gamma(2, 1, (subnets, size)), draw.gamma(2, 0.5, (subnets, size))
    if seed % 4 == 1:
        a, w = np.floor(a), np.floor(w)
    if seed % 4 == 2:
        a[:] = a[:, :1]
    if seed % 4 == 3:
        w = a * draw.random()
    return Scores(a, w)


def test_tables_and_cuts_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both algorithms reach the same sum with disjoint sets of these sizes."""
    draw = np.random.default_rng(5)
    for seed in range(300):
        scores = random_scores(seed, 2, int(draw.integers(1, 50)))
        size = scores.full.shape[1]
        forward, backward, room = (int(draw.integers(0, most)) for most in (20, 20, 20 * size))
        rows = [joint.feasible_counts(joint.JointBudget(forward + backward, forward, room), size)] * 2
        sums = []
        for small in (64, 0):
            monkeypatch.setattr(joint, "MAX_TABLE_SIZE", small)
            fulls, others, splits = joint.best_counts(scores, rows)
            full, only = sets_at_split(scores, splits, fulls, others)
            assert not (full & only).any()
            assert (full.sum(axis=1) == fulls).all() and (only.sum(axis=1) == others).all()
            assert (fulls * (forward + backward) + others * forward <= room).all()
            sums.append((scores.full * full + scores.forward * only).sum(axis=1))
        assert sums[0] == pytest.approx(sums[1], rel=1e-12)


@pytest.mark.parametrize("style", range(4))
def test_1024_micro_batches(style: int) -> None:
    """1024 micro-batches: the sum equals that of a table over capacities."""
    scores = random_scores(style, 1, 1024)
    room, full_cost, forward_cost = 5600, 10, 4
    fulls, others, splits = joint.best_counts(
        scores, [joint.feasible_counts(joint.JointBudget(full_cost, forward_cost, room), 1024)]
    )
    full, only = sets_at_split(scores, splits, fulls, others)
    table = np.zeros(room + 1)
    for a, w in zip(scores.full[0], scores.forward[0], strict=True):
        after = table.copy()
        after[full_cost:] = np.maximum(after[full_cost:], table[:-full_cost] + a)
        after[forward_cost:] = np.maximum(after[forward_cost:], table[:-forward_cost] + w)
        table = after
    assert fulls[0] * full_cost + others[0] * forward_cost <= room
    assert (scores.full * full + scores.forward * only).sum() == pytest.approx(table[-1], rel=1e-12)


def test_many_subnets() -> None:
    """72 subnets x 20 micro-batches and 3 x 1024, by every method that is exact, keep the contract."""
    for problem in (alike(72, 20, 8, 8), alike(3, 1024, 400, 300)):
        for method in ("bilevel", "bilevel-disjoint", "joint"):
            check(problem, solve(problem, method=method))
    weighted = alike(3, 1024, 400, 300, forward_weight=12.0)
    check(weighted, solve(weighted, method="joint"))
