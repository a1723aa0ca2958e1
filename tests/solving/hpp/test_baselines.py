"""Baselines: every draft is a valid plan, and those of one stage are optimal by their own measure."""

import dataclasses
from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings

from fleetune.errors import Infeasible
from fleetune.solving.hpp.draft import Draft, DraftStage, evaluate
from fleetune.solving.hpp.instance import Instance
from fleetune.solving.hpp.methods import dapple, hetpipe, pipedream
from fleetune.solving.hpp.methods.baselines import dp, eddl, pp, proportional, single
from fleetune.solving.hpp.problem import Problem
from fleetune.solving.hpp.sample_allocation import allocate
from tests.support.solving.hpp.instances import drawn, tiny
from tests.support.solving.hpp.problem_strategies import problems, proven

HYBRID = [pp, pipedream.plan, dapple.plan]
WHOLE = [single, dp, eddl]
METHODS = [*WHOLE, *HYBRID]
SEEDS = range(6)


@given(problem=problems())
@settings(max_examples=60, deadline=None)
def test_every_draft_is_a_plan(problem: Problem) -> None:
    """Every method gives a valid plan, deterministically, with as many stages as warm-ups are listed."""
    instance = Instance(problem)
    stages = None if isinstance(problem.warmup, str) else len(problem.warmup)
    for method in METHODS if stages in (None, 1) else HYBRID:
        draft = method(instance)
        proven(instance, draft, problem.micro_batch)
        assert draft == method(instance)
        assert stages in (None, len(draft.stages))
        assert evaluate(instance, draft).round_s < float("inf")


@given(problem=problems())
@settings(max_examples=40, deadline=None)
def test_every_hetpipe_is_a_plan(problem: Problem) -> None:
    """Virtual workers are pipelines of different devices that share out all micro-batches."""
    instance = Instance(problem)
    found = hetpipe.plan(instance)
    used = [proven(instance, worker.draft, problem.micro_batch) for worker in found.virtual_workers]
    assert sum(len(devices) for devices in used) == len(set.union(*used))
    assert sum(worker.micro_batches for worker in found.virtual_workers) == problem.micro_batches
    assert min(worker.micro_batches for worker in found.virtual_workers) >= 1
    assert found.round_s == max(found.server_s, *(worker.busy_s for worker in found.virtual_workers))
    assert (found.server is None) == (len(found.virtual_workers) == 1)


@pytest.mark.parametrize("method", WHOLE, ids=lambda method: method.__name__)
def test_one_stage_or_nothing(method: Any) -> None:
    """A list of warm-ups for two stages is infeasible for a method that makes one, and the list is named."""
    with pytest.raises(Infeasible, match=r"warmup: \[3, 1\] fixes 2 stages"):
        method(Instance(drawn(warmup=(3, 1))))


@pytest.mark.parametrize("method", [*HYBRID, hetpipe.plan], ids=["pp", "pipedream", "dapple", "hetpipe"])
def test_long_chain(method: Any) -> None:
    """More layers than a method looks at one by one, on more devices than stages listed, still make a plan."""
    instance = Instance(tiny(1, layers=1100, devices=4, samples=2, micro_batches=3, warmup=(5, 3, 1)))
    found = method(instance)
    for draft in [found] if isinstance(found, Draft) else [worker.draft for worker in found.virtual_workers]:
        proven(instance, draft, 2)
        assert len(draft.stages) == 3


def test_single_takes_the_fastest_with_room() -> None:
    """The tx2 is fastest; a nano where the tx2 lacks memory (weights and state 12000 B, activations 1200 B); the tx2
    again where nobody has it."""

    def chosen(nano: int, tx2: int) -> tuple[int, ...]:
        devices = [dataclasses.replace(d, memory_bytes=tx2 if d.name == "tx2" else nano) for d in drawn().devices]
        return single(Instance(drawn(devices=tuple(devices)))).stages[0].devices

    assert chosen(13_200, 13_200) == (2,)
    assert chosen(13_200, 13_199) == (0,)
    assert chosen(13_199, 13_199) == (2,)


def test_data_parallel_shares_by_hand() -> None:
    """Of 8 samples the tx2 takes half and each nano a quarter: all are done at the same time."""
    instance = Instance(drawn(micro_batch=8))
    assert dp(instance).stages == (DraftStage(0, 3, (0, 1, 2), (2, 2, 4)),)
    assert eddl(instance).stages == (DraftStage(0, 3, (0, 1, 2), (2, 2, 4)),)


def test_slowest_stay_out_where_samples_are_few() -> None:
    """Two samples occupy two devices: the tx2 and the first nano."""
    for method in (dp, eddl):
        assert method(Instance(drawn())).stages == (DraftStage(0, 3, (0, 2), (1, 1)),)


@pytest.mark.parametrize("seed", SEEDS)
def test_dp_allocates_best(seed: int) -> None:
    """No other way of allocating 7 samples to 3 devices has a faster slowest share."""
    instance = Instance(tiny(seed, samples=7))
    seconds = instance.forward_s[:, :, -1] + instance.backward_s[:, :, -1]

    def slowest(shares: tuple[int, ...]) -> Any:
        return max(seconds[device, y] for device, y in enumerate(shares))

    ways = [shares for shares in product(range(1, 8), repeat=3) if sum(shares) == 7]
    assert slowest(dp(instance).stages[0].samples) == min(map(slowest, ways))


def test_allocation_where_a_first_sample_decides() -> None:
    """A device that is slow with one sample has one; the rest stay below that."""
    assert allocate([[9.0, 18.0, 27.0], [1.0, 2.0, 3.0]], [3, 3], 3) == [1, 2]
    assert allocate([[0.0] * 3] * 2, [3, 3], 3) in ([1, 2], [2, 1])


def test_proportional_rounding() -> None:
    """Capacities 1 : 1 : 2 share 6 as 1.5, 1.5, 3: the first gets the odd one; who would have none takes one."""
    assert proportional(np.array([4.0, 4.0, 2.0]), 6) == [2, 1, 3]
    assert proportional(np.array([100.0, 1.0]), 4) == [1, 3]
    assert proportional(np.array([0.0, 1.0]), 4) == [3, 1]
    assert proportional(np.array([0.0, 0.0]), 4) == [2, 2]
