"""A training that diverges ends with a sentence."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from fleetune.contracts.training_request import TrainingRequest
from fleetune.errors import Refused
from fleetune.training.commit_log import read_commits
from tests.support.training.model_families import BY_NAME, data_request, model_request
from tests.support.training.runs import plan, prepared, run_plan


def test_a_loss_that_is_not_finite_is_refused_with_its_round(tmp_path: Path) -> None:
    """The refusal names the device, the round and the setting to change, since another try would end the same way."""
    ready = prepared(model_request(BY_NAME["vit"], dropout=True), data_request(BY_NAME["vit"], tmp_path), tmp_path)
    training = TrainingRequest(
        rounds=9, batch_samples=24, micro_batch_samples=8, optimizer="sgd", learning_rate=1e30, momentum=0.9
    )
    with pytest.raises(Refused, match=r"device d0 failed: training: round \d has a loss of nan; .* learning_rate"):
        run_plan(ready, plan(ready.units, [], [[8]]), training, tmp_path)
    assert read_commits(tmp_path / "work" / "commits.jsonl")
    assert not (tmp_path / "output").exists()


def test_a_gradient_that_is_not_finite_is_refused_before_its_round_is_committed(tmp_path: Path) -> None:
    """Bug: without clipping a gradient that is not finite was committed and destroyed the weights.

    For large inputs GELU's tanh is flat and its slope is 0 times infinity: the loss is finite, the gradient is not. No
    round is in the log; device and weight are named.
    """
    ready = prepared(model_request(BY_NAME["gpt2"], dropout=True), data_request(BY_NAME["gpt2"], tmp_path), tmp_path)
    start = ready.folders.model / "start.safetensors"
    tensors = load_file(start)
    tensors["transformer.h.0.mlp.c_fc.bias"] = torch.full_like(tensors["transformer.h.0.mlp.c_fc.bias"], 1e20)
    tensors["transformer.h.0.mlp.c_proj.weight"] *= 1e-20
    save_file(tensors, start, {"format": "pt"})
    training = TrainingRequest(rounds=9, batch_samples=24, micro_batch_samples=8)
    named = r"device d\d failed: training: the gradient of transformer\.\S+ in round 0 is not finite; .* learning_rate"
    with pytest.raises(Refused, match=named):
        run_plan(ready, plan(ready.units, [2], [[8], [8]]), training, tmp_path)
    assert read_commits(tmp_path / "work" / "commits.jsonl") == []
    assert not (tmp_path / "output").exists()
