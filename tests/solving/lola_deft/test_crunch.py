"""CRUNCH: Proposition 1, Algorithm 2 and the paper's example; equal parts of the band compared with brute force."""

import itertools
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fleetune.arrays import Floats
from fleetune.contracts import json_io
from fleetune.solving.lola_deft.allocation import (
    bottleneck_allocation,
    bottleneck_matching,
    crunch_allocation,
    crunch_threshold,
    is_monotone,
)
from fleetune.solving.lola_deft.instance import Ints, rounded_into_band
from fleetune.solving.lola_deft.solve import solve
from tests.support.solving.lola_deft.instances import EXAMPLE, NONE, drawn, example, solved
from tests.support.solving.lola_deft.reference import best_s, check

TABLE = np.array(EXAMPLE).T


class Cut(NamedTuple):
    """One round of Algorithm 2."""

    value: float
    """Removed entry, the largest."""
    counts: Ints
    """[device]: eq. (11) after it."""
    passes: bool
    """True if the rest still contains an allocation."""


def keeps(counts: Ints, blocks: int) -> bool:
    """Proposition 1, eq. (12): with counts ascending, the one ranked K - L + l is at least l, for all l = 1..L."""
    return bool(np.all(np.sort(counts)[len(counts) - blocks :] >= np.arange(1, blocks + 1)))


def cuts(table: Floats) -> Iterator[Cut]:
    """Algorithm 2: remove the largest entry, recount, check, until it fails; the last value removed is the optimum."""
    left = np.where(np.isfinite(table), table, -np.inf)
    while np.any(left > -np.inf):
        at = np.unravel_index(np.argmax(left), left.shape)
        value = float(left[at])
        left[at] = -np.inf
        counts = np.count_nonzero(left > -np.inf, axis=0)
        yield Cut(value, counts, keeps(counts, len(table)))
        if not keeps(counts, len(table)):
            return


def test_the_papers_cuts() -> None:
    """Example 1: 46, 42, 38, 35, 34 and 32 are cut and pass; cutting 29 fails, so 29 is the optimum."""
    rounds = list(cuts(TABLE))
    assert [cut.value for cut in rounds] == [46, 42, 38, 35, 34, 32, 29]
    assert [cut.passes for cut in rounds] == [True] * 6 + [False]
    assert sorted(rounds[0].counts) == [1, 2, 2, 3, 4, 4]
    assert crunch_threshold(TABLE) == 29


def test_the_papers_allocation() -> None:
    """Example 1: blocks 1 to 4 go to devices 1, 6, 4, 2 (counted from 1), by the ranks of eq. (13)."""
    assert (crunch_allocation(TABLE <= 29) + 1).tolist() == [1, 6, 4, 2]


@pytest.mark.parametrize("bits", [0.0, 1e6])
def test_the_papers_example_as_a_problem(bits: float) -> None:
    """Method `crunch` solves the same example from memory, compute times and bits."""
    plan = solve(example(bits), method="crunch")
    assert (plan.objective, plan.lower_bound, plan.devices) == (29, 29, (0, 5, 3, 1))
    assert plan.solved_by == "crunch"
    check(json_io.dump(example(bits)), json_io.dump(plan))


def tables(least: int = 1) -> st.SearchStrategy[Any]:
    """Small tables [block, device] of few distinct entries, some infinite."""
    entries = st.sampled_from([1.0, 2.0, 3.0, 4.0, 5.0, NONE])
    sizes = st.tuples(st.integers(1, 4), st.integers(0, 3))
    return sizes.flatmap(
        lambda size: st.lists(
            st.lists(entries, min_size=size[0] + size[1], max_size=size[0] + size[1]),
            min_size=max(least, size[0]),
            max_size=size[0],
        )
    )


@settings(deadline=None, max_examples=300)
@given(tables())
def test_threshold_of_tables_that_deepen(rows: list[list[float]]) -> None:
    """Block by block, by the paper's cuts, and by matching, the optimum of a monotone table is the same."""
    table = np.sort(np.array(rows), axis=0)
    found = crunch_threshold(table)
    counts = np.count_nonzero(np.isfinite(table), axis=0)
    assert (found < NONE) == keeps(counts, len(table))
    if found < NONE:
        assert list(cuts(table))[-1].value == found == bottleneck_matching(table).threshold
        devices = crunch_allocation(table <= found)
        assert len(set(devices.tolist())) == len(table)
        assert max(table[block, device] for block, device in enumerate(devices)) == found


@settings(deadline=None, max_examples=300)
@given(tables())
def test_any_table_by_matching(rows: list[list[float]]) -> None:
    """The threshold of a matching is the least at which the entries hold one, whatever the rows."""
    table = np.array(rows)
    best = min(
        max(table[block, device] for block, device in enumerate(devices))
        for devices in itertools.permutations(range(table.shape[1]), len(table))
    )
    if best < NONE:
        found = bottleneck_allocation(table)
        assert found.threshold == best == bottleneck_matching(table).threshold
        assert max(table[block, device] for block, device in enumerate(found.devices)) == best
        assert found.solved_by == ("crunch" if is_monotone(table) else "matching")


@pytest.mark.parametrize("rows", ["deepen", "any", "even"])
@pytest.mark.parametrize("seed", range(12))
def test_equal_parts_beside_brute_force(seed: int, rows: str) -> None:
    """`crunch` and `bisection` are optimal among all allocations within memory; the plan names the algorithm."""
    problem = drawn(seed, 3 + seed % 4, 1 + seed % 3, bandwidth="equal", rows=rows)
    best = best_s(problem)
    for method in ("crunch", "bisection"):
        plan = solved(problem, method)
        assert plan["objective"] == pytest.approx(best, rel=1e-12)
        assert plan["lower_bound"] == plan["objective"]
    assert solved(problem, "bisection")["solved_by"] == "matching"


def test_rows_that_fall_are_matched() -> None:
    """If a deeper block is faster on some device, CRUNCH would be wrong, and the plan uses matching."""
    problem = drawn(0, 2, 2, bandwidth="equal", compute_s=[[5.0, 1.0], [5.0, 1.0]], block_bits=0)
    plan = solved(problem | {"memory_bytes": [9, 9]}, "crunch")
    assert plan["solved_by"] == "matching"
    assert plan["objective"] == 5.0
    falls = drawn(0, 2, 2, bandwidth="equal", compute_s=[[1.0, 9.0], [9.0, 1.0]], block_bits=0)
    assert solved(falls | {"memory_bytes": [9, 9]}, "crunch")["devices"] == [0, 1]


def test_memory_that_falls_is_matched() -> None:
    """If a deeper block needs less memory, the plan uses matching."""
    problem = drawn(0, 2, 2, bandwidth="equal", compute_s=[[1.0, 2.0], [1.0, 2.0]], block_bits=0)
    plan = solved(problem | {"block_memory_bytes": [5, 1], "memory_bytes": [2, 6]}, "crunch")
    assert (plan["devices"], plan["solved_by"]) == ([1, 0], "matching")


def test_crunch_on_a_joint_problem_is_one_division() -> None:
    """Equal parts are one way to divide the band: feasible, and no better than the optimum, which bounds it."""
    problem = drawn(3)
    plan = solved(problem, "crunch")
    assert len(set(plan["bandwidth_hz"])) == 1
    assert plan["lower_bound"] == solved(problem)["lower_bound"] < plan["objective"]


@settings(deadline=None, max_examples=500)
@given(st.floats(1e-60, 1e60), st.integers(1, 400))
def test_equal_parts_stay_within_the_band(band_hz: float, parts: int) -> None:
    """Equal parts are the band divided by their number, to the last bits, and never add up to more than the band."""
    kept = rounded_into_band([band_hz / parts] * parts, band_hz)
    assert sum(kept) <= band_hz
    assert len(set(kept)) == 1
    assert kept[0] == pytest.approx(band_hz / parts, rel=3e-16 * (parts + 1))
