"""Layers that a device can be trained on with several samples only, against all plans of tiny problems."""

import dataclasses
from collections.abc import Iterator
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fleetune.errors import Infeasible
from fleetune.solving.hpp.instance import Extras, Instance
from fleetune.solving.hpp.methods import SUMMARIES
from fleetune.solving.hpp.methods.search import Search, SearchOptions
from fleetune.solving.hpp.problem import Problem, Solution
from fleetune.solving.hpp.sample_allocation import IMPOSSIBLE, allocate_by_capacity
from fleetune.solving.hpp.solve import solve
from tests.support.solving.hpp import brute_force, reference
from tests.support.solving.hpp.instances import drawn, tiny
from tests.support.solving.hpp.problem_strategies import problems

SYNCHRONOUS = [method for method in SUMMARIES if method != "hetpipe"]


def instances() -> Iterator[tuple[Problem, tuple[int, ...]]]:
    """14 problems over link speeds and memory budgets, with the fewest samples of each layer."""
    for seed in range(14):
        random = Random(seed)
        problem = tiny(
            seed,
            layers=4,
            devices=3 + (seed % 5 == 4),
            samples=3 + seed % 2 if seed % 5 != 4 else 3,
            link=(0.3, 1.0, 10.0)[seed % 3],
            memory=(1.0, 0.5, 0.4)[seed % 3],
            warmup="free" if seed % 7 == 6 else "2(P-p)-1",
            micro_batches=3,
        )
        yield problem, tuple(random.choice([1, 1, 2, 3 if seed % 3 == 0 else 2]) for _ in problem.layers)


def too_few(plan: Solution, min_samples: tuple[int, ...]) -> bool:
    """Whether a device has fewer samples than one of its layers needs."""
    return any(
        share.samples < max(min_samples[slice(*stage.layers)]) for stage in plan.stages for share in stage.devices
    )


def test_as_good_as_any_plan_with_enough_samples() -> None:
    """With the fewest samples that layers need, `search` finds the best of all plans that keep them, within 3 % and on
    average 0.5 %, and a plan wherever there is one; the bound holds; and these samples do exclude better plans."""
    gaps, excluded = [], 0
    for problem, min_samples in instances():
        best = brute_force.best_ns(problem, min_samples)
        try:
            plan = solve(problem, extras=Extras(min_samples=min_samples))
        except Infeasible:
            assert best is None
            continue
        reference.assert_plan(problem, plan.stages)
        assert reference.fits(problem, plan) and not too_few(plan, min_samples)
        assert best is not None and plan.lower_bound is not None
        assert best / 1e9 + 5e-10 >= plan.lower_bound
        gaps.append(plan.objective * 1e9 / best - 1)
        excluded += too_few(solve(problem), min_samples)
    assert max(gaps) <= 0.03 and sum(gaps) / len(gaps) <= 0.005
    assert excluded >= 3


@pytest.mark.parametrize("method", SYNCHRONOUS)
def test_every_method_gives_each_device_enough_samples(method: str) -> None:
    """Whatever the method, no device has fewer samples than one of its layers needs."""
    for problem, min_samples in instances():
        try:
            plan = solve(problem, method=method, extras=Extras(min_samples=min_samples))
        except Infeasible:
            continue
        reference.assert_plan(problem, plan.stages)
        assert not too_few(plan, min_samples)


@settings(max_examples=150, deadline=None)
@given(problems(), st.data())
def test_starts_of_the_search_need_not_be_repaired(problem: Problem, data: st.DataObject) -> None:
    """Baselines' and even plans give every device enough samples for any layers, and are plans."""
    needed = st.integers(1, problem.micro_batch)
    min_samples = tuple(data.draw(needed) for _ in problem.layers)
    instance = Instance(problem, min_samples=min_samples)
    for draft in Search(instance, SearchOptions()).starts():
        assert all(sum(stage.samples) == instance.samples for stage in draft.stages)
        assert brute_force.enough_samples(draft, min_samples)


@settings(max_examples=200, deadline=None)
@given(problems(), st.data())
def test_the_papers_allocation_keeps_the_fewest_samples(problem: Problem, data: st.DataObject) -> None:
    """Algorithm 1 gives each device at least the fewest samples of its layers, wherever a micro-batch has them."""
    needed = data.draw(st.integers(1, problem.micro_batch))
    count = data.draw(st.integers(1, len(problem.devices)))
    roomy = tuple(dataclasses.replace(device, memory_bytes=2**40) for device in problem.devices)
    instance = Instance(dataclasses.replace(problem, devices=roomy), min_samples=(needed,) * len(problem.layers))
    shares = np.zeros(count, np.int64)
    outcome = allocate_by_capacity(instance.arrays, np.arange(count), 0, instance.layers, 1, shares)
    assert (outcome == IMPOSSIBLE) == (count * needed > problem.micro_batch)
    if outcome != IMPOSSIBLE:
        assert shares.sum() == problem.micro_batch and shares.min() >= needed


def test_every_device_may_be_more_than_the_samples_allow() -> None:
    """Three devices that must take part cannot share 5 samples of one layer where each needs 2; with 6 they can."""
    with pytest.raises(
        Infeasible, match="every_device: 3 devices cannot all take part, 1 stage of 5 samples occupy at"
    ):
        solve(tiny(1, layers=1, samples=5), every_device=True, extras=Extras(min_samples=(2,)))
    plan = solve(tiny(1, layers=1, samples=6), every_device=True, extras=Extras(min_samples=(2,)))
    assert [share.samples for share in plan.stages[0].devices] == [2, 2, 2]


def test_all_devices_take_part_although_one_layer_needs_many_samples() -> None:
    """With every device, the best of all plans is found where the layers that need many samples need a device alone."""
    problem, min_samples = tiny(3, layers=3, devices=4, samples=3), (1, 2, 1)
    best = brute_force.best_ns(problem, min_samples, every_device=True)
    plan = solve(problem, every_device=True, extras=Extras(min_samples=min_samples))
    assert best is not None and plan.objective * 1e9 == pytest.approx(best, rel=0.01)
    assert not too_few(plan, min_samples)


def test_a_micro_batch_below_the_fewest_samples_is_infeasible() -> None:
    """The message names the layer, what it needs and what there is."""
    with pytest.raises(Infeasible, match="micro_batch: it has 2, but layer head needs at least 3 samples"):
        solve(drawn(), extras=Extras(min_samples=(1, 1, 3)))
