"""How parameters move: rates by hand, clipping as torch does it, and state that survives being taken apart."""

from typing import Any

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given
from torch import nn
from torch.nn.utils import clip_grad_norm_

from fleetune.contracts.config.training import TrainingRequest
from fleetune.training.updates import Updates, clip_scale, learning_rate, square_norm

OPTIMIZERS = {
    "adamw": {"optimizer": "adamw", "weight_decay": 0.1},
    "sgd": {"optimizer": "sgd"},
    "momentum": {"optimizer": "sgd", "momentum": 0.9, "weight_decay": 0.1},
}


def request(**changes: Any) -> TrainingRequest:
    """Ten rounds at a rate of 1."""
    settings: dict[str, Any] = {"rounds": 10, "learning_rate": 1.0, **changes}
    return TrainingRequest(**settings)


@pytest.mark.parametrize(
    "changes, rates",
    [
        ({}, [1, 1, 1, 1, 1, 1, 1, 1, 1, 1]),
        ({"warmup_rounds": 4}, [0.25, 0.5, 0.75, 1, 1, 1, 1, 1, 1, 1]),
        ({"schedule": "linear"}, [1, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1]),
        ({"schedule": "linear", "warmup_rounds": 2}, [0.5, 1, 1, 0.875, 0.75, 0.625, 0.5, 0.375, 0.25, 0.125]),
        ({"schedule": "cosine", "rounds": 4}, [1, 0.853553, 0.5, 0.146447]),
        ({"schedule": "cosine", "rounds": 5, "warmup_rounds": 1}, [1, 1, 0.853553, 0.5, 0.146447]),
        ({"rounds": 3, "warmup_rounds": 6}, [1 / 6, 2 / 6, 3 / 6]),
        ({"rounds": 2, "warmup_rounds": 2, "schedule": "linear"}, [0.5, 1]),
    ],
    ids=str,
)
def test_rates_follow_their_schedule(changes: dict[str, Any], rates: list[float]) -> None:
    """A straight warm-up, then constant, a line or half a cosine that would reach 0 after the last round."""
    training = request(**changes)
    assert [learning_rate(training, round) for round in range(training.rounds)] == pytest.approx(rates, abs=1e-6)


@given(st.floats(0, 1e6), st.floats(1e-3, 1e3))
def test_clipping_is_torchs(norm: float, limit: float) -> None:
    """The factor is what clip_grad_norm_ multiplies gradients by."""
    parameter = nn.Parameter(torch.zeros(1, dtype=torch.float64))
    parameter.grad = torch.tensor([norm], dtype=torch.float64)
    clip_grad_norm_([parameter], limit)
    assert float(parameter.grad) == pytest.approx(norm * clip_scale(request(clip_norm=limit), norm), rel=1e-12)


def test_nothing_is_clipped_where_no_norm_is_given() -> None:
    """Neither without a limit nor below it."""
    assert clip_scale(request(), 100.0) == clip_scale(request(clip_norm=1.0), None) == 1.0
    assert clip_scale(request(clip_norm=1.0), 0.5) == 1.0


def test_squares_add_up_over_gradients() -> None:
    """3, 4 and 12 make 169."""
    assert square_norm([torch.tensor([3.0, 4.0]), torch.tensor([[12.0]])]) == 169.0


def parameters(names: str = "abc") -> dict[str, nn.Parameter]:
    """Parameters by name; c is frozen."""
    made = {}
    for name in names:
        values = torch.randn(5, generator=torch.Generator().manual_seed(ord(name)))
        made[name] = nn.Parameter(values, requires_grad=name != "c")
    return made


def step(held: dict[str, nn.Parameter], updates: Updates, round: int, scale: float = 1.0) -> None:
    """One round with gradients that depend on name and round only."""
    for name, parameter in held.items():
        if parameter.requires_grad:
            parameter.grad = torch.randn(5, generator=torch.Generator().manual_seed(1000 * round + ord(name)))
    updates.apply(round, scale)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_step_is_torchs_own(name: str) -> None:
    """Five rounds of scaled gradients move parameters as torch's optimizer does, and leave no gradient."""
    training = request(**OPTIMIZERS[name], schedule="linear")
    held, theirs = parameters(), parameters()
    updates = Updates(held, training)
    kinds: dict[str, Any] = {"adamw": torch.optim.AdamW, "sgd": torch.optim.SGD, "momentum": torch.optim.SGD}
    extra = {"momentum": training.momentum} if training.optimizer == "sgd" else {}
    optimizer = kinds[name]([theirs["a"], theirs["b"]], lr=1.0, weight_decay=training.weight_decay, **extra)
    for round in range(5):
        step(held, updates, round, scale=0.5)
        for key in "ab":
            theirs[key].grad = 0.5 * torch.randn(5, generator=torch.Generator().manual_seed(1000 * round + ord(key)))
        optimizer.param_groups[0]["lr"] = 1.0 - 0.1 * round
        optimizer.step()
    for key in "abc":
        torch.testing.assert_close(held[key], theirs[key])
        assert held[key].grad is None
    assert torch.equal(held["c"], parameters()["c"])


@pytest.mark.parametrize("split", ["ab", "a", "b"])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_state_taken_up_elsewhere_gives_the_same_next_steps(name: str, split: str) -> None:
    """Bit by bit, also by a device that holds only some of the parameters, and by one that started at another time."""
    training = request(**OPTIMIZERS[name])
    held = parameters()
    updates = Updates(held, training)
    for round in range(3):
        step(held, updates, round)
    kept = {key: value.clone() for key, value in updates.state().items()}
    there = {key: nn.Parameter(held[key].detach().clone()) for key in split}
    taken = Updates(there, training)
    taken.restore(kept)
    for round in range(3, 6):
        step(held, updates, round)
        step(there, taken, round)
    assert all(torch.equal(there[key], held[key]) for key in split)
    assert all(torch.equal(value, updates.state()[key]) for key, value in taken.state().items())


def test_state_is_named_by_kind_and_parameter() -> None:
    """So that it can travel between plans; plain SGD has none; restoring copies."""
    held = parameters()
    updates = Updates(held, request(**OPTIMIZERS["adamw"]))
    step(held, updates, 0)
    assert set(updates.state()) == {f"{kind}:{n}" for kind in ("step", "exp_avg", "exp_avg_sq") for n in "ab"}
    kept = updates.state()
    other = Updates(parameters(), request(**OPTIMIZERS["adamw"]))
    other.restore(kept)
    before = kept["exp_avg:a"].clone()
    step(parameters(), other, 1)
    assert torch.equal(kept["exp_avg:a"], before)
    plain = Updates(parameters(), request(**OPTIMIZERS["sgd"]))
    step(parameters(), plain, 0)
    assert plain.state() == {}


def test_a_segment_without_trained_parameters_stays_as_it_is() -> None:
    """Frozen wholly: no optimizer, no state, no gradient."""
    held = parameters("c")
    updates = Updates(held, request())
    updates.apply(0, 1.0)
    assert updates.state() == updates.gradients() == {}
    assert torch.equal(held["c"], parameters()["c"])


def test_a_parameter_that_the_loss_did_not_reach_has_a_gradient_of_zeros() -> None:
    """All members of a group must add up the same tensors."""
    held = parameters("ab")
    held["a"].grad = torch.ones(5)
    gradients = Updates(held, request()).gradients()
    assert torch.equal(gradients["a"], torch.ones(5))
    assert torch.equal(gradients["b"], torch.zeros(5))
