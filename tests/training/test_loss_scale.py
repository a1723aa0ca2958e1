"""The loss scale of fp16: what torch's GradScaler would have, told by the commit log alone."""

import random
from dataclasses import replace

import pytest
import torch
from torch.amp.grad_scaler import GradScaler

from fleetune.contracts.metrics import RoundMetrics
from fleetune.contracts.run_config import ModelRequest
from fleetune.contracts.training_request import TrainingRequest
from fleetune.training import gradients
from fleetune.training.gradients import FIRST_SCALE, MOST_SCALE, UNSCALED, next_scale, step_scales

MODEL = ModelRequest(task="causal-lm", config={"model_type": "bert"}, mixed_precision="fp16")
ROUND = RoundMetrics(round=0, loss=1.0, gradient_norm=None, learning_rate=1e-3, round_s=1.0)
GROWS_AFTER = 3


@pytest.mark.parametrize("seed", range(8))
def test_the_scale_is_that_of_gradscaler(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever rounds overflow, the log leads to the scale that torch's own scaler has come to."""
    monkeypatch.setattr(gradients, "GROWS_AFTER_ROUNDS", GROWS_AFTER)
    drawn = random.Random(seed)
    parameter = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([parameter], lr=0.1)
    scaler = GradScaler("cpu", init_scale=FIRST_SCALE, growth_interval=GROWS_AFTER)
    rounds: list[RoundMetrics] = []
    for number in range(60):
        scale = next_scale(MODEL, rounds)
        assert scale == (scaler.get_scale() if rounds else FIRST_SCALE)
        overflows = scale >= MOST_SCALE or (scale > 2 and drawn.random() < 0.3)
        scaler.scale(parameter.sum()).backward()
        assert parameter.grad is not None
        if overflows:
            parameter.grad.fill_(float("inf"))
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        lanes = ("main",) if overflows else ()
        rounds.append(replace(ROUND, round=number, loss_scale=scale, overflowed=lanes))
    assert len({each.loss_scale for each in rounds}) > 3, "the scale has moved both ways"


def test_the_scale_stays_within_its_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is never below 1, where the loss is as it is, and never so large that one more doubling is of no use."""
    monkeypatch.setattr(gradients, "GROWS_AFTER_ROUNDS", 1)
    assert next_scale(MODEL, [replace(ROUND, loss_scale=MOST_SCALE)]) == MOST_SCALE
    assert next_scale(MODEL, [replace(ROUND, loss_scale=UNSCALED, overflowed=("main",))]) == UNSCALED


@pytest.mark.parametrize("mixed", [None, "bf16"])
def test_other_precisions_have_none(mixed: str | None) -> None:
    """bfloat16 has the range of float32."""
    assert next_scale(replace(MODEL, mixed_precision=mixed), [ROUND]) == UNSCALED


def test_gradients_lose_the_scale_before_they_are_clipped() -> None:
    """A lane of norm 4 is clipped to 1, another one of norm 0.5 is not, and one that has overflowed takes no step."""
    training = TrainingRequest(rounds=1, clip_norm=1.0)
    metrics = replace(ROUND, loss_scale=8.0, overflowed=("c",))
    norms = {"a": torch.tensor(4.0), "b": torch.tensor(0.5), "c": torch.tensor(float("nan"))}
    found = step_scales(training, metrics, norms)
    assert found == {"a": pytest.approx(1 / 4 / 8, rel=1e-5), "b": 1 / 8, "c": None}
