"""Learning rates, optimizer steps, and optimizer state that is saved and loaded by name."""

from typing import Any

import pytest
import torch
from torch import nn

from fleetune.contracts.training_request import TrainingRequest
from fleetune.training.optimizer import NamedOptimizer, learning_rate

OPTIMIZERS = {
    "adamw": {"optimizer": "adamw", "weight_decay": 0.1},
    "sgd": {"optimizer": "sgd"},
    "momentum": {"optimizer": "sgd", "momentum": 0.9, "weight_decay": 0.1},
}


def request(**changes: Any) -> TrainingRequest:
    """Return a request for ten rounds at a rate of 1."""
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
    """A linear warm-up, then constant, a line or half a cosine that would reach 0 after the last round."""
    training = request(**changes)
    assert [learning_rate(training, round) for round in range(training.rounds)] == pytest.approx(rates, abs=1e-6)


def parameters(names: str = "abc") -> dict[str, nn.Parameter]:
    """Return parameters by name; c is frozen."""
    made = {}
    for name in names:
        values = torch.randn(5, generator=torch.Generator().manual_seed(ord(name)))
        made[name] = nn.Parameter(values, requires_grad=name != "c")
    return made


def step(held: dict[str, nn.Parameter], updates: NamedOptimizer, round: int, scale: float = 1.0) -> None:
    """Run one round with gradients that depend on name and round only."""
    for name, parameter in held.items():
        if parameter.requires_grad:
            parameter.grad = torch.randn(5, generator=torch.Generator().manual_seed(1000 * round + ord(name)))
    updates.step(round, scale)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_step_equals_torchs(name: str) -> None:
    """Five rounds of scaled gradients change parameters as torch's optimizer does, and leave no gradient."""
    training = request(**OPTIMIZERS[name], schedule="linear")
    held, theirs = parameters(), parameters()
    updates = NamedOptimizer(held, training)
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


@pytest.mark.parametrize("kind", ["adamw", "momentum"])
@pytest.mark.parametrize("decays, changed", [("weights", "a"), ("all", "ab")])
def test_biases_and_norms_decay_only_if_asked(kind: str, decays: str, changed: str) -> None:
    """Bug: they always did, where transformers' Trainer spares them. With gradients of zero only the decay is seen, and
    a device that holds the spared ones alone spares them, too.
    """
    training = request(**OPTIMIZERS[kind], weight_decay_on=decays)
    for names in ("ab", "b"):
        held = parameters(names)
        updates = NamedOptimizer(held, training, undecayed={"b"})
        for parameter in held.values():
            parameter.grad = torch.zeros(5)
        updates.step(0, 1.0)
        assert all(torch.equal(held[n], parameters(n)[n]) == (n not in changed) for n in names)


@pytest.mark.parametrize("split", ["ab", "a", "b"])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_state_loaded_elsewhere_gives_the_same_next_steps(name: str, split: str) -> None:
    """Steps agree bit by bit, also on a device that holds only some parameters or starts at another round."""
    training = request(**OPTIMIZERS[name])
    held = parameters()
    updates = NamedOptimizer(held, training)
    for round in range(3):
        step(held, updates, round)
    kept = {key: value.clone() for key, value in updates.state().items()}
    there = {key: nn.Parameter(held[key].detach().clone()) for key in split}
    taken = NamedOptimizer(there, training)
    taken.load_state(kept)
    for round in range(3, 6):
        step(held, updates, round)
        step(there, taken, round)
    assert all(torch.equal(there[key], held[key]) for key in split)
    assert all(torch.equal(value, updates.state()[key]) for key, value in taken.state().items())


def test_state_is_named_by_kind_and_parameter() -> None:
    """Named state can move between plans; plain SGD has none; loading copies."""
    held = parameters()
    updates = NamedOptimizer(held, request(**OPTIMIZERS["adamw"]))
    step(held, updates, 0)
    assert set(updates.state()) == {f"{kind}:{n}" for kind in ("step", "exp_avg", "exp_avg_sq") for n in "ab"}
    kept = updates.state()
    other = NamedOptimizer(parameters(), request(**OPTIMIZERS["adamw"]))
    other.load_state(kept)
    before = kept["exp_avg:a"].clone()
    step(parameters(), other, 1)
    assert torch.equal(kept["exp_avg:a"], before)
    plain = NamedOptimizer(parameters(), request(**OPTIMIZERS["sgd"]))
    step(parameters(), plain, 0)
    assert plain.state() == {}


def test_a_segment_without_trained_parameters_stays_as_it_is() -> None:
    """A frozen segment has no optimizer, no state and no gradient."""
    held = parameters("c")
    updates = NamedOptimizer(held, request())
    updates.step(0, 1.0)
    assert updates.state() == updates.gradients() == {}
    assert torch.equal(held["c"], parameters()["c"])


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_parameter_that_the_loss_does_not_reach_stays_as_it_is(name: str) -> None:
    """Bug: it got zeros for a gradient, and weight decay changed it, where torch's optimizers leave it alone."""
    held = parameters("ab")
    updates = NamedOptimizer(held, request(**OPTIMIZERS[name]))
    for _ in range(3):
        held["a"].grad = torch.ones(5)
        assert updates.gradients().keys() == {"a"}
        updates.step(0, 0.5)
    assert torch.equal(held["b"], parameters("b")["b"]) and not torch.equal(held["a"], parameters("a")["a"])
    assert not any(key.endswith(":b") for key in updates.state())


def test_gradients_of_a_round_that_was_not_committed_are_dropped() -> None:
    """The round is repeated, and its earlier gradients must not count twice."""
    held = parameters("ab")
    updates = NamedOptimizer(held, request())
    held["a"].grad = torch.ones(5)
    updates.clear_gradients()
    assert updates.gradients() == {}


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_parameters_may_get_their_first_gradients_later_than_others(kind: str) -> None:
    """Bugs: heads that a refresh of gates trains first ended a training with momentum; clipping ended one on a device
    none of whose heads is trained. Each parameter goes as it would alone."""
    training = request(**OPTIMIZERS[kind])
    held, alone = parameters("ab"), parameters("ab")
    updates = NamedOptimizer(held, training)
    updates.step(0, 0.5)
    assert all(torch.equal(held[name], alone[name]) for name in held), "without gradients nothing changes"
    single = {name: NamedOptimizer({name: alone[name]}, training) for name in alone}
    for round, names in enumerate(("a", "a", "ab", "ab")):
        for each in (held, alone):
            for name in names:
                each[name].grad = torch.randn(5, generator=torch.Generator().manual_seed(1000 * round + ord(name)))
        updates.step(round, 1.0)
        for name in names:
            single[name].step(round, 1.0)
    for name in held:
        assert torch.equal(held[name], alone[name])
