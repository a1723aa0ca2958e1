"""Asteroid's planner against hand-drawn groups and a slow transcription of the paper."""

import dataclasses

import numpy as np
import pytest

from fleetune.errors import Infeasible
from fleetune.solving.hpp.draft import evaluate, formula_round_s
from fleetune.solving.hpp.instance import Instance
from fleetune.solving.hpp.methods import asteroid
from fleetune.solving.hpp.methods.asteroid import PipelineDP
from fleetune.solving.hpp.problem import Device, Layer, Problem
from fleetune.solving.hpp.sample_allocation import IMPOSSIBLE, MEMORY_AMPLE, MEMORY_BOUND, allocate_by_capacity
from tests.support.solving.hpp import paper_planner, reference
from tests.support.solving.hpp.instances import drawn, tiny

POLICIES = ["2(P-p)-1", "2(P-p)", "P-p", "2(P-p)+1", "free", (2, 1)]


def one_layer(
    speeds: list[float], rooms: list[int], samples: int, start_s: float = 0.0, micro_batches: int = 1
) -> Problem:
    """One layer without weights; device d does `speeds[d]` samples per second after `start_s`, and `rooms[d]` fit."""
    sizes = tuple(range(1, samples + 1))
    seconds = tuple((tuple(start_s + y / speed for y in sizes),) for speed in speeds)
    count = len(speeds)
    return Problem(
        micro_batch=samples,
        micro_batches=micro_batches,
        layers=(Layer(name="only", param_bytes=0, activation_bytes=10, flops=1, output_bytes=1),),
        devices=tuple(Device(name=f"d{k}", memory_bytes=10 * y) for k, y in enumerate(rooms)),
        batch_sizes=sizes,
        forward_s=seconds,
        backward_s=tuple((tuple(0.0 for _ in sizes),) for _ in speeds),
        bandwidth_bytes_per_s=tuple(tuple(None if a == b else 1e6 for b in range(count)) for a in range(count)),
        latency_s=tuple(tuple(None if a == b else 0.0 for b in range(count)) for a in range(count)),
    )


def allocated(problem: Problem, warmup: int = 1) -> tuple[int, list[int]]:
    """Outcome and shares of Algorithm 1 for all devices as one group."""
    group = np.arange(len(problem.devices))
    shares = np.zeros(len(group), np.int64)
    outcome = allocate_by_capacity(Instance(problem).arrays, group, 0, 1, warmup, shares)
    return outcome, shares.tolist()


def test_dealing_in_proportion() -> None:
    """Speeds 1 : 1 : 2 share 8 samples as 2, 2, 4 where memory is ample."""
    assert allocated(one_layer([1.0, 1.0, 2.0], [8, 8, 8], 8)) == (MEMORY_AMPLE, [2, 2, 4])


def test_memory_caps_and_the_rest_is_allocated_again() -> None:
    """The fast device has room for 1 of its 4: the 3 left over go to the other two as 2 and 1 by rounding, and the
    slowest, now with 4, cannot give to anybody who would be faster."""
    assert allocated(one_layer([1.0, 1.0, 2.0], [8, 8, 1], 8)) == (MEMORY_BOUND, [4, 3, 1])


def test_memory_caps_twice() -> None:
    """What is left over caps the second device in the second pass; the third pass gives all to the last with room."""
    assert allocated(one_layer([1.0, 1.0, 2.0], [8, 3, 1], 8)) == (MEMORY_BOUND, [4, 3, 1])
    assert allocated(one_layer([1.0, 1.0, 2.0], [8, 2, 1], 8)) == (MEMORY_BOUND, [5, 2, 1])


def test_nothing_has_room() -> None:
    """Rooms of 2, 2 and 3 do not hold 8 samples; a device without room for one, or more devices than samples, fail."""
    assert allocated(one_layer([1.0, 1.0, 2.0], [2, 2, 3], 8))[0] == IMPOSSIBLE
    assert allocated(one_layer([1.0, 1.0, 2.0], [8, 8, 0], 8))[0] == IMPOSSIBLE
    assert allocated(one_layer([1.0, 1.0, 2.0], [8, 8, 8], 2))[0] == IMPOSSIBLE


def test_forwards_kept_take_room() -> None:
    """With 3 micro-batches kept a room of 6 samples holds 2; with 5 of only 3 micro-batches it is the same."""
    problem = one_layer([1.0, 2.0], [8, 6], 4, micro_batches=3)
    assert allocated(problem, 1) == (MEMORY_AMPLE, [1, 3])
    assert allocated(problem, 3) == allocated(problem, 5) == (MEMORY_BOUND, [2, 2])


def test_a_slow_device_still_takes_one() -> None:
    """A device a hundred times slower would be allocated nothing: it takes one sample from the largest share."""
    assert allocated(one_layer([100.0, 100.0, 1.0], [8, 8, 8], 8)) == (MEMORY_AMPLE, [3, 4, 1])


def test_straggler_offloads() -> None:
    """By capacity, 8 samples in 14 s and in 4 s, phase 1 allocates 2 and 6; the first device, which starts 6 s late, is
    relieved of one while it is the slowest - unless the other has no room for it."""
    problem = one_layer([1.0, 2.0], [8, 8], 8)
    late = dataclasses.replace(
        problem, forward_s=((tuple(6.0 + y for y in problem.batch_sizes),), problem.forward_s[1])
    )
    assert allocated(late) == (MEMORY_AMPLE, [1, 7])
    capped = dataclasses.replace(late, devices=(late.devices[0], Device(name="d1", memory_bytes=60)))
    assert allocated(capped) == (MEMORY_BOUND, [2, 6])


@pytest.mark.parametrize("seed", range(20))
def test_algorithm_1_as_transcribed(seed: int) -> None:
    """The recursive transcription allocates the same to every group of neighbours, whatever the memory."""
    problem = tiny(seed, layers=3, samples=3 + seed % 5, memory=(1.0, 0.5, 0.35)[seed % 3])
    instance = Instance(problem)
    for group in ((0,), (0, 1), (1, 2), (2, 0, 1)):
        for span in ((0, 1), (0, 3), (1, 3)):
            for warmup in (1, 3, 5):
                shares = np.zeros(len(group), np.int64)
                outcome = allocate_by_capacity(instance.arrays, np.array(group), *span, warmup, shares)
                wanted = paper_planner.allocate(problem, group, span, warmup)
                assert (None if outcome == IMPOSSIBLE else shares.tolist()) == wanted


@pytest.mark.parametrize("seed", range(30))
def test_algorithm_2_as_transcribed(seed: int) -> None:
    """Every number of stages has the transcription's eq. (4), and the plan handed out is the best of them."""
    devices, policy = 2 + seed % 3, POLICIES[seed % len(POLICIES)]
    problem = tiny(
        seed,
        layers=4 + seed % 3,
        devices=devices,
        memory=(1.0, 0.6, 0.4)[seed % 3],
        link=(0.1, 1.0, 10.0)[seed % 3],
        micro_batches=1 + seed % 5,
        warmup=policy,
    )
    instance = Instance(problem)
    least = float("inf")
    found = PipelineDP(
        instance, np.argsort(-instance.memory_bytes, kind="stable"), np.arange(instance.layers + 1)
    ).totals()
    for stages in range(1, min(len(problem.layers), devices) + 1):
        if isinstance(policy, tuple) and len(policy) != stages:
            assert stages >= len(found) or found[stages] == float("inf")
            continue
        kept = [
            policy[stages - q] if isinstance(policy, tuple) else reference.POLICIES[paper_policy(policy)](q)
            for q in range(1, stages + 1)
        ]
        wanted = paper_planner.Planner(problem, kept).latency_s(stages)
        assert found[stages] == pytest.approx(wanted, rel=1e-12)
        least = min(least, wanted)
    if least == float("inf"):
        with pytest.raises(Infeasible, match=f"asteroid: no plan that uses all {devices} devices"):
            asteroid.plan(instance)
        return
    cost = evaluate(instance, asteroid.plan(instance))
    assert cost.formula_round_s == pytest.approx(least, rel=1e-12)
    assert cost.shortfall is None


def paper_policy(policy: str) -> str:
    """Where K is free, the plan has the paper's own K."""
    return "2(P-p)-1" if policy == "free" else policy


def test_formula_by_hand() -> None:
    """Three stages of one device on the drawn problem, micro-batches of 2, cuts of 200 bytes: 1 s and 0.1 s late.

    Steps (E_f, E_b): nano (1, 2), cut (1.1, 1.1), nano (1, 2), cut (1.1, 1.1), tx2 (0.5, 1). M = 5: the second nano
    dominates: 5 * 3 + 3 + 2.2 = 20.2 s against 15, 14, 19.4 and 17.9; eq. (4) is that of step 0.
    """
    shapes = [(0, 1, (0,), (2,)), (1, 2, (1,), (2,)), (2, 3, (2,), (2,))]
    assert formula_round_s(Instance(drawn()), shapes) == pytest.approx(20.2)


def test_formula_of_a_reduce_by_hand() -> None:
    """Both nano share the last two layers: a stage's 2000 bytes of gradients sum in 2 * 2000 / (2 * 200) = 10 s.

    Steps: tx2 (0.5, 1), cut (1.1, 1.1), nanos (1, 2). Step 2 dominates: 15 + 2.2 + 1.5 = 18.7; step 2 itself is
    waiting 1.6 + executing 15 + 10 = 26.6.
    """
    shapes = [(0, 1, (2,), (2,)), (1, 3, (0, 1), (1, 1))]
    assert formula_round_s(Instance(drawn()), shapes) == pytest.approx(26.6)


@pytest.mark.parametrize("seed", range(6))
def test_pruning_changes_no_answer(seed: int) -> None:
    """Above 24 layers a coarse pass bounds the second one: the plan is the one found without a bound."""
    problem = tiny(seed, layers=27 + seed, devices=4, link=(0.3, 3.0)[seed % 2], memory=(1.0, 0.5)[seed // 3])
    instance = Instance(problem)
    whole = PipelineDP(instance, np.argsort(-instance.memory_bytes, kind="stable"), np.arange(instance.layers + 1))
    stages = int(np.argmin(whole.totals()))
    assert asteroid.plan(instance) == whole.draft(stages)


def test_devices_are_taken_by_memory() -> None:
    """Early stages go to the devices with the most memory, whatever the order they are listed in."""
    problem = tiny(3, devices=4, link=100.0, samples=1)
    plan = asteroid.plan(Instance(problem))
    memory = [problem.devices[stage.devices[0]].memory_bytes for stage in plan.stages]
    assert len(memory) == 4
    assert memory == sorted(memory, reverse=True)


@pytest.mark.parametrize("policy", POLICIES, ids=str)
def test_warmups_of_a_plan(policy: str | tuple[int, ...]) -> None:
    """K of every stage is the policy's (the paper's where free), a list fixes the number of stages."""
    plan = asteroid.plan(Instance(tiny(1, link=10.0, warmup=policy)))
    stages = len(plan.stages)
    if isinstance(policy, tuple):
        assert plan.warmups == policy
    else:
        assert plan.warmups == tuple(reference.POLICIES[paper_policy(policy)](stages - p) for p in range(stages))


def test_short_memory_is_named() -> None:
    """Where nothing fits, the message says what the method tried and names another method."""
    with pytest.raises(Infeasible, match="asteroid: no plan that uses all 3 devices .* leaves devices out"):
        asteroid.plan(Instance(tiny(1, memory=0.01)))
