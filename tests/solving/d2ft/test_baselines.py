"""The baselines: pruning of whole subnets by importance, and random micro-batches."""

from collections import Counter

import pytest

from fleetune.errors import Refused
from fleetune.solving.d2ft.problem import Solution
from fleetune.solving.d2ft.solve import solve
from tests.support.solving.d2ft.instances import alike, drawn
from tests.support.solving.d2ft.reference import FORWARD, FULL, check, of


def kept(plan: Solution) -> list[int]:
    """Return the subnets that train everything; the others do nothing."""
    assert all(set(row) in ({1}, {3}) for row in plan.table)
    return [k for k, row in enumerate(plan.table) if 1 in row]


def test_the_strongest_subnets_are_kept_whole() -> None:
    """Pruning keeps as many subnets as the total compute allows, by weights or by weights x gradients."""
    problem = alike(
        5, 5, 3, 0, weight_magnitude=(3.0, 1.0, 4.0, 1.0, 5.0), gradient_magnitude=(1.0, 9.0, 0.0, 9.0, 1.0)
    )
    assert kept(solve(problem, method="magnitude")) == [0, 2, 4]
    assert kept(solve(problem, method="magnitude-gradient")) == [1, 3, 4]


def test_equal_magnitudes_keep_the_first() -> None:
    """Ties go to the first subnet."""
    assert kept(solve(alike(5, 5, 3, 0, weight_magnitude=(1.0,) * 5), method="magnitude")) == [0, 1, 2]


def test_the_total_is_exact() -> None:
    """Three subnets whose fulls and forward-onlys come to the last decimal of one whole subnet keep one."""
    fields = {"forward_cost": (0.1,) * 3, "backward_cost": (0.2,) * 3, "weight_magnitude": (1.0, 3.0, 2.0)}
    problem = alike(3, 4, 1, 0, **fields, full_capacity=(0.3, 0.3, 0.3), forward_capacity=(0.1, 0.1, 0.1))
    assert kept(solve(problem, method="magnitude")) == [1]
    less = alike(3, 4, 1, 0, **fields, full_capacity=(0.3, 0.3, 0.3), forward_capacity=(0.1, 0.1, 0.09))
    assert kept(solve(less, method="magnitude")) == []


def test_a_subnet_over_its_own_budget_is_named() -> None:
    """A plan over a subnet's budget names it and claims no bound; other plans are feasible and bounded."""
    plan = solve(alike(5, 5, 3, 1), method="magnitude")
    first = kept(plan)[0]
    assert plan.reason == f"subnet {first} trains 5 micro-batches and its full_capacity holds 3 of them"
    assert not plan.feasible
    assert plan.upper_bound is None
    everything = solve(alike(5, 5, 5, 0), method="magnitude")
    assert everything.feasible
    assert everything.upper_bound == everything.objective


@pytest.mark.parametrize(
    ("method", "missing", "key"),
    [
        ("magnitude", "weight_magnitude", "weight_magnitude"),
        ("magnitude-gradient", "weight_magnitude", "weight_magnitude"),
        ("magnitude-gradient", "gradient_magnitude", "gradient_magnitude"),
        ("joint", "capacity", "capacity"),
    ],
)
def test_missing_keys_are_named(method: str, missing: str, key: str) -> None:
    """A method that needs a missing key names it."""
    with pytest.raises(Refused, match=f"^{key}: method {method} needs this key; give one number for each subnet$"):
        solve(drawn(**{missing: None}), method=method)
    solve(drawn(**{missing: None}))


def test_random_uses_the_budgets_up() -> None:
    """`random` uses the budgets up, by seed, and chooses micro-batches about equally often."""
    problem = alike(72, 20, 8, 4)
    plans = [solve(problem, method="random", seed=seed) for seed in range(30)]
    assert len({plan.table for plan in plans}) == 30
    times: Counter[int] = Counter()
    for plan in plans:
        check(problem, plan)
        assert all((len(of(row, FULL)), len(of(row, FORWARD))) == (8, 4) for row in plan.table)
        times.update(i for row in plan.table for i in of(row, FULL))
    expected = 30 * 72 * 8 / 20
    assert all(0.8 * expected < times[i] < 1.2 * expected for i in range(20))


def test_unknown_methods_are_refused() -> None:
    """An unknown method is refused with the known ones."""
    with pytest.raises(Refused, match="method: 'dp' is not known; allowed are bilevel, bilevel-disjoint, joint"):
        solve(drawn(), method="dp")


def test_workload_variance() -> None:
    """The variance is 0 for disjoint knapsacks with equal budgets, and about 0.25 for pruned subnets (Table I)."""
    problem = alike(72, 5, 3, 1)
    variance = {
        name: solve(problem, method=name).workload_variance
        for name in ("bilevel", "bilevel-disjoint", "joint", "random", "magnitude", "magnitude-gradient")
    }
    assert (variance["bilevel-disjoint"], variance["joint"], variance["random"]) == (0, 0, 0)
    assert 0 < variance["bilevel"] < 0.01
    assert variance["magnitude"] == variance["magnitude-gradient"] == pytest.approx(2 / 9)
