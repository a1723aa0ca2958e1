"""Messages of infeasible problems: the device, the missing bytes, what needs them, and what to do."""

import dataclasses

import pytest

from fleetune.errors import Infeasible
from fleetune.solving.hpp.problem import Problem
from fleetune.solving.hpp.solve import solve
from tests.support.solving.hpp.instances import drawn


def with_budgets(problem: Problem, *sizes: int) -> Problem:
    """The problem with other memories; a layer of the drawn one has 4000 bytes of state, 200 a sample and forward."""
    devices = [dataclasses.replace(d, memory_bytes=y) for d, y in zip(problem.devices, sizes, strict=True)]
    return dataclasses.replace(problem, devices=tuple(devices))


def message(problem: Problem) -> str:
    """The message of the Infeasible that the problem raises."""
    with pytest.raises(Infeasible) as caught:
        solve(problem)
    return str(caught.value)


def test_a_layer_that_no_device_holds() -> None:
    """The largest layer, with a single sample, on the device with the most memory."""
    layers = list(drawn().layers)
    layers[1] = dataclasses.replace(layers[1], activation_bytes=300)
    assert message(with_budgets(drawn(layers=tuple(layers)), 4100, 4200, 4250)) == (
        "device tx2, the roomiest, lacks 50 bytes for layer body alone with one sample (4300 of 4250); split the "
        "layer, train fewer of its parameters or add a device with more memory"
    )


def test_all_layers_against_all_memories() -> None:
    """Every layer fits somewhere, their states not all at once."""
    assert message(with_budgets(drawn(), 4200, 3900, 3800)) == (
        "all layers with gradients, optimizer state and snapshots need 12000 bytes, all devices together have 11900; "
        "train fewer parameters or add memory"
    )


def test_the_plan_that_lacks_least() -> None:
    """Three stages of a device each lack least, and of them the first, which keeps 5 forwards of 2 samples."""
    sentence = message(with_budgets(drawn(), 4300, 4300, 4300))
    assert sentence.split(maxsplit=2)[2] == (
        "lacks 1700 bytes for layer embed with 2 samples of each of 5 micro-batches kept (6000 of 4300); no plan was "
        "found that fits all memories: take smaller micro-batches"
    )


def test_free_lacks_less() -> None:
    """Where K is free, the message counts a single kept forward."""
    sentence = message(with_budgets(drawn(warmup="free"), 4300, 4300, 4300))
    assert "lacks 100 bytes for layer" in sentence
    assert "with 2 samples of the one micro-batch kept (4400 of 4300)" in sentence


def test_a_method_that_ignores_memory_says_what_its_plan_lacks() -> None:
    """Methods that ignore memory hand out the plan, with the device, the bytes and the layers."""
    plan = solve(with_budgets(drawn(), 20_000, 20_000, 11_000), method="single")
    assert plan.feasible
    plan = solve(with_budgets(drawn(), 11_000, 11_000, 11_000), method="single")
    assert not plan.feasible
    assert plan.reason == (
        "device tx2 lacks 2200 bytes for layers embed to head with 2 samples of the one micro-batch kept "
        "(13200 of 11000)"
    )
