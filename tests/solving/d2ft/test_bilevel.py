"""The knapsacks of `bilevel` are exact for any integer costs, small or huge."""

from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fleetune.errors import Refused
from fleetune.solving.d2ft.instance import FORWARD_ONLY, FULL, Budget, Instance, to_integers
from fleetune.solving.d2ft.methods.paper import bilevel, bilevel_disjoint, random, solve_knapsack
from fleetune.solving.d2ft.solve import workload_variance


def most(values: list[int], costs: list[int], capacity: int) -> int:
    """Return the optimum by enumeration."""
    best = 0
    for taken in range(2 ** len(values)):
        chosen = [i for i in range(len(values)) if taken >> i & 1]
        if sum(costs[i] for i in chosen) <= capacity:
            best = max(best, sum(values[i] for i in chosen))
    return best


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 30), st.integers(0, 12)), max_size=9),
    st.integers(0, 60),
    st.sampled_from([1, 7, 10**17]),
)
def test_no_subset_is_worth_more(items: list[tuple[int, int]], capacity: int, unit: int) -> None:
    """The value is that of the best subset; a common factor of the costs, however large, changes nothing."""
    values, costs = [value for value, _ in items], [cost * unit for _, cost in items]
    chosen = solve_knapsack([float(value) for value in values], costs, capacity * unit)
    taken = np.flatnonzero(chosen)
    assert sum(costs[i] for i in taken) <= capacity * unit
    assert sum(values[i] for i in taken) == most(values, costs, capacity * unit)


def test_costs_without_a_common_unit() -> None:
    """Costs of many digits are exact: a capacity that is short by the last digit does not suffice."""
    costs = to_integers([0.1234567890123, 0.3, 0.1765432109877, 0.5999999999999])
    assert list(solve_knapsack([1.0, 1.0, 1.0, 2.5], costs, to_integers([0.6, 1e-13])[0])) == [True, True, True, False]
    assert list(solve_knapsack([1.0, 1.0, 1.0, 3.5], costs, to_integers([0.6, 1e-13])[0])) == [
        False,
        False,
        False,
        True,
    ]
    with pytest.raises(Refused, match="round them"):
        solve_knapsack([1.0, 1.0], [10**30, 10**30 + 1], 10**30 + 1)


def test_large() -> None:
    """500 items: the value equals that of a table over all capacities."""
    draw = Random("large")
    costs = [draw.randint(50, 500) for _ in range(500)]
    values = [cost * draw.uniform(0.8, 1.2) for cost in costs]
    capacity = sum(costs) // 3
    table = np.zeros(capacity + 1)
    for value, cost in zip(values, costs, strict=True):
        table[cost:] = np.maximum(table[cost:], table[:-cost] + value)
    chosen = solve_knapsack(values, costs, capacity)
    assert sum(cost for cost, taken in zip(costs, chosen, strict=True) if taken) <= capacity
    assert sum(value for value, taken in zip(values, chosen, strict=True) if taken) == pytest.approx(table[-1], 1e-12)


def test_micro_batches_of_different_length() -> None:
    """Both knapsacks are exact for a subnet whose costs differ, beside one whose costs are equal."""
    draw = Random("lengths")
    for _ in range(60):
        size = 6
        backward, forward = (np.array([[float(draw.randint(0, 9)) for _ in range(size)]] * 2) for _ in range(2))
        ahead, back = ([float(draw.randint(1, 5)) for _ in range(size)] for _ in range(2))
        budgets = (Budget.from_costs(ahead, back, 12.0, 7.0), Budget.from_costs(1.0, 1.0, 6.0, 2.0))
        instance = Instance(backward, forward, budgets)
        table = bilevel_disjoint(instance)
        full, only = table == FULL, table == FORWARD_ONLY
        whole = [int(f + b) for f, b in zip(ahead, back, strict=True)]
        assert backward[0][full[0]].sum() == most([int(x) for x in backward[0]], whole, 12)
        left = np.flatnonzero(~full[0])
        assert forward[0][only[0]].sum() == most([int(forward[0][i]) for i in left], [int(ahead[i]) for i in left], 7)
        assert (full[1].sum(), only[1].sum()) == (3, 2)
        assert ((bilevel(instance) == FULL) == full).all()
        assert workload_variance(instance, table) >= 0
        drawn = random(instance, 1)
        assert np.array(whole)[drawn[0] == FULL].sum() <= 12


def test_budgets_are_exact() -> None:
    """Budgets are integers on one scale for any decimals; equal costs of all micro-batches become one cost."""
    assert Budget.from_costs(0.1, 0.0, 0.3, 1e-3) == (100, 100, 300, 1, None)
    assert Budget.from_costs((0.1, 0.1), (0.2, 0.2), 0.3, 0.3, 1.0) == (3, 1, 3, 3, 10)
    assert Budget.from_costs((1.0, 2.0), 1.0, 5.0, 5.0).full_cost == (20, 30)
    assert to_integers([1e300, 1.5e-300, 0.0, -2.0]) == [10**601, 15, 0, -2 * 10**301]
    assert to_integers([]) == []
