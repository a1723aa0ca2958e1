"""QLoRA: adapters on a base of 4 bits train as on a base that was rounded so, cut or not, and are scored as trained."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

from fleetune.contracts.run_config import Lora
from fleetune.contracts.training_request import TrainingRequest
from fleetune.data.prepared_data import PreparedData
from fleetune.errors import Refused
from fleetune.evaluation.trained_model import load_result
from fleetune.models.init_weights import INIT_WEIGHTS, initial_model
from fleetune.models.skeleton import saved_configuration, skeleton
from fleetune.profiling.profile import unit_sizes
from tests.support.models.plain_nf4 import BLOCK, nearest
from tests.support.training.control_comparison import FP32
from tests.support.training.control_runs import WHOLE, request
from tests.support.training.lost_devices import TRAINING, losing
from tests.support.training.model_families import BY_NAME, data_request, model_request
from tests.support.training.plain_half import compute_in_half
from tests.support.training.quantized_base import chats_ready
from tests.support.training.runs import Prepared, final_state, plan, prepared, run_plan
from tests.support.training.unsplit_training import Control, Order, train_unsplit

LOSING = replace(TRAINING, schedule="constant")
BF16 = 5e-3
"""As in test_mixed_precision."""


def rounded_model(ready: Prepared) -> nn.Module:
    """Return the unsplit model, with plain layers whose frozen weights are rounded by the definition."""
    config = saved_configuration(ready.folders.model / "model")
    start = ready.folders.model / INIT_WEIGHTS
    model = initial_model(config, replace(ready.model, quantization=None), start)
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear) and not module.weight.requires_grad and not name.endswith("lm_head"):
            module.weight = nn.Parameter(nearest(module.weight), requires_grad=False)
    return model


def control(ready: Prepared, training: TrainingRequest) -> Control:
    """Train the rounded model by a plain loop."""
    model, mixed = rounded_model(ready), ready.model.mixed_precision
    model = compute_in_half(model, mixed) if mixed else model
    data = PreparedData(ready.folders.data)
    return train_unsplit(model, data, training, ready.seed, ready.units, Order(WHOLE))


def distance(state: dict[str, torch.Tensor], whole: Control) -> float:
    """Return the largest relative distance of a trained tensor."""
    pairs = [(state[name], whole.state[name]) for name in state if "lora_" in name]
    assert pairs
    return max(float((a - b).norm() / b.norm().clamp(min=1e-12)) for a, b in pairs)


@pytest.mark.parametrize("recompute", ["never", "always"])
def test_adapters_train_as_on_a_rounded_base(recompute: str, tmp_path: Path) -> None:
    """A Qwen3 cut in the middle, whose devices hold 4 bits, ends as a plain loop over rounded float32 weights."""
    ready = chats_ready(tmp_path)
    training = request(rounds=4, clip_norm=0.5, learning_rate=1e-2)
    made = plan(ready.units, [len(ready.units) // 2], [[8], [8]])
    segments = tuple(replace(each, recompute=recompute == "always") for each in made.lanes[0].segments)
    made = replace(made, lanes=(replace(made.lanes[0], segments=segments),))
    metrics = run_plan(ready, made, training, tmp_path)
    whole = control(ready, training)
    assert max(abs(a.loss - b) / b for a, b in zip(metrics.rounds, whole.losses, strict=True)) < FP32
    assert distance(final_state(tmp_path), whole) < FP32


def test_what_is_scored_is_what_was_trained(tmp_path: Path) -> None:
    """The loaded result computes with the rounded base: its logits are those of the plain loop's model."""
    ready = chats_ready(tmp_path)
    training = request(rounds=2, learning_rate=1e-2)
    run_plan(ready, plan(ready.units, [], [[8]]), training, tmp_path)
    found = load_result(tmp_path / "output" / "checkpoint", ready.folders.model, ready.model, pytest.fail).eval()
    wanted = rounded_model(ready)
    state = final_state(tmp_path)
    wanted.load_state_dict(state, strict=False)
    rows = PreparedData(ready.folders.data).rows("test", [0, 1, 2])
    given = {name: torch.from_numpy(array) for name, array in rows.items() if name != "labels"}
    with torch.no_grad():
        logits, theirs = found(**given).logits, wanted.eval()(**given).logits
    assert float((logits - theirs).norm() / theirs.norm()) < FP32


def test_half_precision_computes_with_the_same_base(tmp_path: Path) -> None:
    """In bfloat16 the rounded weights are cast once, as those of the plain loop are."""
    ready = chats_ready(tmp_path, mixed_precision="bf16")
    training = request(rounds=3, learning_rate=1e-2)
    run_plan(ready, plan(ready.units, [len(ready.units) // 2], [[8], [8]]), training, tmp_path)
    assert distance(final_state(tmp_path), control(ready, training)) < BF16


def test_a_device_that_takes_over_packs_what_it_reads(tmp_path: Path) -> None:
    """After the loss of one of two devices, the other one holds all layers: its own as they are, the rest read anew."""
    ready = chats_ready(tmp_path / "model")
    made = plan(ready.units, [len(ready.units) // 2], [[8], [8]])
    losing(ready, made, tmp_path, 4, 1, training=LOSING)
    assert distance(final_state(tmp_path), control(ready, LOSING)) < FP32


def test_the_profile_counts_what_is_held(tmp_path: Path) -> None:
    """A block's frozen products take 4.5 bits an element; adapters, norms and the embedding take 32."""
    ready = chats_ready(tmp_path)
    config = saved_configuration(ready.folders.model / "model")
    none = [0] * len(ready.units)
    packed, plain = (
        unit_sizes(ready.graph, skeleton(config, replace(ready.model, quantization=kind)), none, none, 8)
        for kind in ("nf4", None)
    )
    whole = skeleton(config, replace(ready.model, quantization=None))
    for small, large in zip(packed, plain, strict=True):
        frozen = [
            module.weight.numel()
            for name, module in whole.named_modules()
            if f".{small.name}." in f".{name}." and isinstance(module, nn.Linear) and not module.weight.requires_grad
        ]
        saved = sum(4 * n - -(-n // BLOCK) * 36 for n in frozen if not small.name.endswith("lm_head"))
        assert large.param_bytes - small.param_bytes == saved, small.name
        assert large.trainable_bytes == small.trainable_bytes


def test_what_has_no_linear_layers_is_refused(tmp_path: Path) -> None:
    """GPT-2's products are convolutions of width 1: nothing of it would be in 4 bits."""
    family = BY_NAME["gpt2"]
    model = model_request(family, dropout=False, lora=Lora(targets=("c_attn",)), quantization="nf4")
    with pytest.raises(Refused, match="fits no frozen linear layer"):
        prepared(model, data_request(family, tmp_path), tmp_path)
