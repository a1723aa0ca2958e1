"""Cuts of chains of layers: runs of equal work, optimal cuts, and baseline `pp`, which consists of them."""

import dataclasses
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fleetune.solving.hpp.chain_cuts import best_cuts, run_edges
from fleetune.solving.hpp.draft import DraftStage
from fleetune.solving.hpp.instance import Instance
from fleetune.solving.hpp.methods.baselines import pp
from fleetune.solving.hpp.problem import Problem
from tests.support.solving.hpp.instances import drawn, tiny
from tests.support.solving.hpp.problem_strategies import cuttings, problems

SEEDS = range(6)


@pytest.mark.parametrize("seed", SEEDS)
def test_pp_cuts_best(seed: int) -> None:
    """The cuts minimise the slowest stage, then the sum; devices are in descending order of memory."""
    instance = Instance(tiny(seed, layers=7, devices=4))
    draft = pp(instance)
    order = [stage.devices[0] for stage in draft.stages]
    assert order == sorted(range(4), key=lambda device: -instance.memory_bytes[device])

    def costs(cuts: tuple[int, ...]) -> tuple[float, float]:
        stages = [sum(instance.seconds(d, instance.samples, *cuts[p : p + 2])) for p, d in enumerate(order)]
        return max(stages), sum(stages)

    found = (0, *(stage.end for stage in draft.stages))
    assert costs(found) == pytest.approx(min(map(costs, cuttings(7, 4))), rel=1e-12)


def test_pp_by_hand() -> None:
    """The tx2 has the most memory and twice the speed: it takes one layer of three only because each device has one;
    with two stages listed it takes two layers and the slower second nano stays out."""
    assert [stage.devices for stage in pp(Instance(drawn())).stages] == [(2,), (0,), (1,)]
    two = pp(Instance(drawn(warmup=(3, 1))))
    assert two.stages == (DraftStage(0, 2, (2,), (2,)), DraftStage(2, 3, (0,), (2,)))


def test_cuts_break_ties_by_the_sum() -> None:
    """The first part costs 5 whatever the rest does: the second ends at 3 for 1 rather than at 2 for 4."""
    costs = np.full((3, 5, 5), 9.0)
    costs[0, 0, 1], costs[1, 1, 2], costs[1, 1, 3], costs[2, 2, 4], costs[2, 3, 4] = 5, 4, 1, 4, 4
    assert best_cuts(3, lambda p: costs[p]) == [0, 1, 3, 4]


def test_runs_begin_where_least_crosses() -> None:
    """Twelve equal layers in four runs: the cut within half a run of each quarter that carries least."""
    crossing = [9, 9, 9, 1, 9, 9, 2, 9, 9, 1, 9, 9]
    layers = tuple(
        dataclasses.replace(drawn().layers[0], name=f"layer-{i}", output_bytes=size) for i, size in enumerate(crossing)
    )
    one = (((1.0, 2.0),) * 12,) * 3
    instance = Instance(drawn(layers=layers, forward_s=one, backward_s=one))
    assert run_edges(instance, 4).tolist() == [0, 4, 7, 10, 12]
    assert run_edges(instance, 12).tolist() == list(range(13))


@given(problem=problems(), most=st.integers(1, 8))
@settings(max_examples=40, deadline=None)
def test_runs_cover(problem: Problem, most: int) -> None:
    """There are as many runs as asked for, or as layers, and none is empty."""
    edges = run_edges(Instance(problem), most)
    assert len(edges) - 1 == min(most, len(problem.layers))
    assert edges[0] == 0
    assert edges[-1] == len(problem.layers)
    assert min(np.diff(edges)) >= 1


TIMES = st.integers(0, 12).map(float)


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
