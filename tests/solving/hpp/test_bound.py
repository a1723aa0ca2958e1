"""The lower bound: below every plan, and exact where the optimum is obvious."""

import dataclasses

import pytest

from fleetune.solving.hpp.bound import lower_bound_s, work_s
from fleetune.solving.hpp.instance import Instance
from fleetune.solving.hpp.problem import Device, Layer, Problem
from fleetune.solving.hpp.solve import solve
from tests.support.solving.hpp import brute_force
from tests.support.solving.hpp.instances import drawn, tiny


@pytest.mark.parametrize("link", [0.01, 0.1, 1.0, 10.0, 1000.0])
def test_no_plan_is_faster(link: float) -> None:
    """50 problems for each speed of links: the best of all plans, whatever its memory, takes at least as long."""
    for seed in range(50):
        problem = tiny(
            seed,
            layers=1 + seed % 4,
            devices=1 + seed // 2 % 3,
            samples=1 + seed % 3,
            micro_batches=1 + seed % 5,
            link=link,
            memory=10.0,
        )
        if seed % 2:
            shorter = tuple(
                dataclasses.replace(x, output_bytes=x.output_bytes * (k % 2)) for k, x in enumerate(problem.layers)
            )
            problem = dataclasses.replace(problem, layers=shorter)
        best, bound_s = brute_force.best_ns(problem), lower_bound_s(Instance(problem))
        assert best is not None
        assert 0 <= bound_s * 1e9 <= best


def test_one_device_best_by_far() -> None:
    """Over links a thousand times too slow nobody helps the tx2: 5 micro-batches of 3 layers of 1.5 s are the bound."""
    slow = drawn(bandwidth_bytes_per_s=((None, 0.2, 0.2), (0.2, None, 0.2), (0.2, 0.2, None)))
    assert lower_bound_s(Instance(slow)) == pytest.approx(22.5, abs=1e-6)
    plan = solve(slow)
    assert plan.objective == 22.5
    assert plan.lower_bound == pytest.approx(22.5, abs=1e-6)


def test_a_device_alone() -> None:
    """On a single device the bound is the round."""
    problem = tiny(3, devices=1, memory=2.0)
    assert lower_bound_s(Instance(problem)) == pytest.approx(solve(problem).objective, rel=1e-6)


def test_work_by_hand() -> None:
    """Layer a takes 1 s and 2 s a sample on two devices, layer b 3 s and 2 s. The first does all of a and a fifth of b
    (1.6 s), the second four fifths of b (1.6 s): 6.4 s for 4 samples, and no other division is faster."""
    layer = Layer(name="a", param_bytes=0, activation_bytes=0, flops=0, output_bytes=0)
    problem = Problem(
        micro_batch=1,
        micro_batches=4,
        layers=(layer, dataclasses.replace(layer, name="b")),
        devices=(Device(name="x", memory_bytes=0), Device(name="y", memory_bytes=0)),
        batch_sizes=(1,),
        forward_s=(((0.5,), (1.0,)), ((0.5,), (1.5,))),
        backward_s=(((0.5,), (2.0,)), ((1.5,), (0.5,))),
        bandwidth_bytes_per_s=((None, 1.0), (1.0, None)),
        latency_s=((None, 0.0), (0.0, None)),
    )
    assert work_s(Instance(problem)) == pytest.approx(6.4)


def test_work_on_equal_devices() -> None:
    """Three equal devices do a third of it each; times of larger batches count where they are better per sample."""
    problem = drawn(
        forward_s=(((0.5, 0.8),) * 3,) * 3,
        backward_s=(((1.0, 1.6),) * 3,) * 3,
    )
    assert work_s(Instance(problem)) == pytest.approx(5 * 3 * 2.4 / 3)
