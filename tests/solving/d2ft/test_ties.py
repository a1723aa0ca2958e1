"""Ties are broken so that every micro-batch is trained by some subnet whenever the budgets allow it at all."""

from collections import Counter
from itertools import product
from random import Random

import networkx as nx
import numpy as np
import pytest

from fleetune.solving.d2ft.problem import Problem
from fleetune.solving.d2ft.solve import solve
from tests.support.solving.d2ft.instances import alike, tiny
from tests.support.solving.d2ft.reference import FORWARD, FULL, best_joint, of

METHODS = ("bilevel", "bilevel-disjoint", "joint")


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(("subnets", "fulls"), [(72, 3), (5, 1), (3, 2), (2, 3), (1, 5), (7, 4)])
def test_all_are_trained_evenly(method: str, subnets: int, fulls: int) -> None:
    """If scores do not depend on the sample, none is left out, and numbers of trainings differ by one at most.

    Under a joint capacity forward scores decide which are trained, so evenness is for equal ones.
    """
    forward = ((0.5,) * 5,) * subnets
    plan = solve(alike(subnets, 5, fulls, 1, forward_scores=forward), method=method)
    times = Counter(i for row in plan.table for i in of(row, FULL))
    assert plan.untrained_micro_batches == 0
    assert max(times.values()) - min(times.values()) <= 1


@pytest.mark.parametrize("method", METHODS)
def test_capacities_with_a_pattern(method: str) -> None:
    """Budgets that differ in any pattern leave no micro-batch untrained without need."""
    random = Random("patterns")
    for _ in range(60):
        size, subnets = random.randint(2, 12), random.randint(1, 9)
        pattern = [random.randint(0, size) for _ in range(random.randint(1, 3))]
        fulls = [float(pattern[k % len(pattern)]) for k in range(subnets)]
        problem = Problem(
            backward_scores=((1.0,) * size,) * subnets,
            forward_scores=((1.0,) * size,) * subnets,
            forward_cost=(0.5,) * subnets,
            backward_cost=(0.5,) * subnets,
            full_capacity=tuple(fulls),
            forward_capacity=(1.0,) * subnets,
            capacity=tuple(fulls),
        )
        plan = solve(problem, method=method)
        assert plan.untrained_micro_batches == max(0, size - int(sum(fulls)))


def test_partial_ties_are_used_up() -> None:
    """The number of trained micro-batches equals the maximum flow from subnets through their ties."""
    random = Random("flow")
    for _ in range(400):
        subnets, size = random.randint(1, 5), random.randint(1, 7)
        scores = tuple(tuple(float(random.randint(0, 2)) for _ in range(size)) for _ in range(subnets))
        fulls = tuple(float(random.randint(0, size)) for _ in range(subnets))
        problem = Problem(
            backward_scores=scores,
            forward_scores=scores,
            forward_cost=(1.0,) * subnets,
            backward_cost=(0.0,) * subnets,
            full_capacity=fulls,
            forward_capacity=(0.0,) * subnets,
        )
        assert solve(problem).untrained_micro_batches == size - most_trained(scores, fulls)


def most_trained(scores: tuple[tuple[float, ...], ...], fulls: tuple[float, ...]) -> int:
    """Return how many micro-batches the optimal outer knapsacks can train together."""
    flow, always = nx.DiGraph(), set()
    flow.add_nodes_from(("source", "sink"))
    for k, (row, count) in enumerate(zip(scores, map(int, fulls), strict=True)):
        if count:
            least = sorted(row)[-count]
            above = {i for i, score in enumerate(row) if score > least}
            always |= above
            flow.add_edge("source", f"subnet {k}", capacity=count - len(above))
            flow.add_edges_from(((f"subnet {k}", i) for i, x in enumerate(row) if x == least), capacity=1)
    flow.add_edges_from(((i, "sink") for i in range(len(scores[0])) if i not in always), capacity=1)
    return len(always) + int(nx.maximum_flow_value(flow, "source", "sink"))


def test_joint_leaves_out_what_every_best_plan_leaves_out() -> None:
    """Backward scores first: of all combinations of best rows, none trains more of the micro-batches."""
    for seed in range(120):
        problem = tiny(seed, 3, 4, forward_weight=None)
        positive = tuple(tuple(score + 1 for score in row) for row in problem.backward_scores)
        problem = tiny(seed, 3, 4, forward_weight=None, backward_scores=positive)
        choices = [{tuple(of(row, FULL)) for row in best_joint(problem, k)} for k in range(3)]
        fewest = min(4 - len({i for one in combined for i in one}) for combined in product(*choices))
        assert solve(problem, method="joint").untrained_micro_batches == fewest


def test_forward_ties_are_spread() -> None:
    """Equal forward scores: the paper's inner knapsack takes none that is full already, and all run about as often."""
    problem = alike(20, 5, 2, 2, forward_scores=((1.0,) * 5,) * 20)
    for method in METHODS:
        plan = solve(problem, method=method)
        assert all(len(of(row, FORWARD)) == 2 for row in plan.table)
        busy = (np.array(plan.table) != 3).sum(axis=0)
        assert busy.max() - busy.min() <= 1


def test_a_full_that_scores_0_takes_no_room() -> None:
    """`joint` does not train micro-batches whose backward score is 0; the capacity goes to forward-only ones."""
    problem = tiny(
        0, 1, 3, backward_scores=((0.0, 0.0, 1.0),), forward_scores=((1.0, 1.0, 1.0),), forward_cost=(1.0,),
        backward_cost=(1.0,), capacity=(4.0,), forward_weight=None,
    )  # fmt: skip
    assert solve(problem, method="joint").table == ((2, 2, 1),)
