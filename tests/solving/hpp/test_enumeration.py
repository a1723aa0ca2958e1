"""All plans of small instances, and the search that looks at each of them."""

import dataclasses
from itertools import product

import pytest

from fleetune.errors import Infeasible
from fleetune.solving.hpp.annealing import AnnealingPhase
from fleetune.solving.hpp.enumeration import count_plans, every_plan
from fleetune.solving.hpp.instance import Extras, Instance
from fleetune.solving.hpp.methods import search as search_module
from fleetune.solving.hpp.problem import Problem
from fleetune.solving.hpp.solve import solve
from tests.support.solving.hpp import brute_force
from tests.support.solving.hpp.instances import tiny


@pytest.mark.parametrize(
    ("layers", "devices", "samples", "warmup"),
    [
        (5, 4, 3, "2(P-p)-1"),
        (1, 3, 4, "P-p"),
        (4, 1, 3, "P-p"),
        (3, 3, 4, "free"),
        (4, 3, 3, (3, 2)),
        (3, 4, 1, "free"),
    ],
)
def test_every_plan_is_there_once(layers: int, devices: int, samples: int, warmup: str | tuple[int, ...]) -> None:
    """The plans are those of the brute force, where all fit, and as many as are counted."""
    problem = tiny(1, layers=layers, devices=devices, samples=samples, memory=1000.0, warmup=warmup, micro_batches=3)
    made = list(every_plan(Instance(problem)))
    assert len(made) == len(set(made)) == count_plans(Instance(problem))
    assert set(made) == set(brute_force.plans(problem))


def few_plans(seed: int) -> Problem:
    """A problem of at most 1776 plans with budgets that bind, of several policies."""
    policy = ("2(P-p)-1", "free", "P-p", (3, 2))[seed % 4]
    return tiny(seed, layers=4, devices=3, samples=3, memory=(0.4, 0.5)[seed % 2], micro_batches=3, warmup=policy)


def test_the_best_of_few_plans_is_found_whatever_walks_miss(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bug: of 1042 small problems, walks missed the best plan of two, once by 1.6 %: memory sets it apart from others.
    Without any walk, the search still finds the best of few plans, also with the fewest samples that layers need, or
    with every device."""
    monkeypatch.setattr(search_module, "PHASES", (AnnealingPhase(1, 0.0, 0.02, 0.001),))
    monkeypatch.setattr(search_module, "BASELINES", ())
    kinds = (((), False), ((1, 2, 1, 1), False), ((), True))
    for problem, (min_samples, every_device) in product(map(few_plans, range(8)), kinds):
        best = brute_force.best_ns(problem, min_samples, every_device=every_device)
        try:
            found = solve(problem, extras=Extras(min_samples=min_samples), every_device=every_device)
        except Infeasible:
            assert best is None
            continue
        assert best is not None and abs(found.objective * 1e9 - best) < 0.5


def test_many_plans_are_not_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    """Above the limit no plan is enumerated: their number grows beyond all bounds."""

    def unasked(instance: Instance) -> None:
        raise AssertionError(instance)

    problem = few_plans(0)
    monkeypatch.setattr(search_module, "every_plan", unasked)  # replaced: asked for one plan too many, it has no end
    monkeypatch.setattr(search_module, "MOST_PLANS", count_plans(Instance(problem)) - 1)
    assert solve(problem).feasible
    large = dataclasses.replace(tiny(1, layers=30, devices=12, samples=16))
    assert count_plans(Instance(large)) > 10**20
