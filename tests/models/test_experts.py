"""Mixtures of experts, cut anywhere, are transformers' own models bit by bit."""

import random
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode
from transformers import AutoModelForCausalLM
from transformers.models.mixtral.modeling_mixtral import MixtralExperts

from fleetune.contracts.run_config import ModelRequest
from fleetune.errors import Refused
from fleetune.models.experts import run_experts, use_recordable_experts
from fleetune.models.init_weights import INIT_WEIGHTS, initial_model, write_init_weights
from fleetune.models.segment import SegmentRunner
from fleetune.models.skeleton import base_skeleton, skeleton
from fleetune.models.source import configuration
from fleetune.models.weights import WeightReader
from fleetune.profiling.profile import min_samples
from tests.support.models.cuts import cut, run_cut
from tests.support.models.instances import CPU, Recorded, batch, recorded
from tests.support.training.model_families import LANGUAGE, Family

SIZES = {
    "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 2,
    "intermediate_size": 64, "vocab_size": 300, "num_experts_per_tok": 2,
}  # fmt: skip
LATENT = {"q_lora_rank": 16, "kv_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 16}
MIXTURES = (
    Family("mixtral", LANGUAGE, {"model_type": "mixtral", **SIZES, "num_local_experts": 4}),
    Family("qwen3_moe", LANGUAGE, {"model_type": "qwen3_moe", **SIZES, "num_experts": 4, "moe_intermediate_size": 32}),
    Family("gpt_oss", LANGUAGE, {"model_type": "gpt_oss", **SIZES, "head_dim": 16, "num_local_experts": 4}),
    Family(
        "deepseek_v3", LANGUAGE,
        {"model_type": "deepseek_v3", **SIZES, **LATENT, "n_routed_experts": 4, "n_group": 2, "topk_group": 1,
         "moe_intermediate_size": 32, "first_k_dense_replace": 1},
    ),
)  # fmt: skip
MIXTRAL = MIXTURES[0]
DRAWING = Family("phimoe", LANGUAGE, {"model_type": "phimoe", **SIZES, "num_local_experts": 4})
EPSILON = torch.finfo(torch.float32).eps


def plain_model(ready: Recorded) -> nn.Module:
    """Return the model as transformers makes it by default, with the same weights."""
    config = configuration(ready.request)
    config._experts_implementation = None  # private: a configuration has no other name for it
    model = AutoModelForCausalLM.from_config(config)
    assert model.config._experts_implementation == "grouped_mm"  # private: nor for what was chosen
    model.load_state_dict(ready.whole().state_dict())
    plain: nn.Module = model.train()
    return plain


def whole_step(model: nn.Module, given: dict[str, torch.Tensor]) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """Return logits, and gradients of their sum of squares by name."""
    model.zero_grad()
    logits = model(**given).logits
    (logits**2).sum().backward()
    return logits.detach(), {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("granularity", ["block", "layer"])
@pytest.mark.parametrize("family", MIXTURES, ids=lambda family: family.name)
def test_a_mixture_cut_anywhere_is_transformers_own(family: Family, granularity: str, tmp_path: Path) -> None:
    """Values are those of the unsplit model with transformers' default for experts, bit by bit. So are gradients, but
    for the order in which those of a value that crosses several cuts are added: within 20 times the change that
    another order of the samples causes.
    """
    ready = recorded(family, tmp_path, granularity)
    given = batch(family, 3)
    logits, gradients = run_cut(cut(ready, random.Random(family.name)), given, 3)
    model = plain_model(ready)
    theirs, expected = whole_step(model, given)
    _, reordered = whole_step(model, {name: value.flip(0) for name, value in given.items()})
    assert torch.equal(logits, theirs)
    assert gradients.keys() == expected.keys()
    for name, gradient in expected.items():
        rounding = max(float((reordered[name] - gradient).norm()), EPSILON * float(gradient.norm()))
        assert float((gradients[name] - gradient).norm()) <= (20 * rounding if granularity == "layer" else 0.0), name


def test_a_mixtures_folder_as_the_hub_has_it_is_read_unit_by_unit(tmp_path: Path) -> None:
    """A folder has one tensor for each expert; the experts of a unit are read into one, and no others."""
    ready = recorded(MIXTRAL, tmp_path / "start")
    whole = ready.whole()
    whole.save_pretrained(tmp_path / "folder")  # type: ignore[operator]
    request = ModelRequest(task=LANGUAGE, source=str(tmp_path / "folder"))
    config = configuration(request)
    write_init_weights(config, request, 3, tmp_path / INIT_WEIGHTS)
    segment = SegmentRunner(ready.graph, ready.units[2:3], skeleton(config, request), CPU)
    segment.load(WeightReader(base_skeleton(config, request), tmp_path / "folder", tmp_path / INIT_WEIGHTS))
    expected = whole.state_dict()
    assert any("experts" in name for name in segment.parameters)
    assert all(torch.equal(value, expected[name]) for name, value in segment.parameters.items())
    again = initial_model(config, request, tmp_path / INIT_WEIGHTS).state_dict()
    assert all(torch.equal(again[name], value) for name, value in expected.items())


def test_layers_whose_experts_are_drawn_need_the_whole_micro_batch(tmp_path: Path) -> None:
    """Bug: PhiMoE, which draws its experts for all tokens of a micro-batch at once, was refused only when a group had
    begun to train it. The profile says so, and planners give such layers one device each."""
    ready = recorded(DRAWING, tmp_path)
    needed = min_samples(ready.graph, ready.whole(), micro_batch_samples=6)
    assert {name for name, samples in needed.items() if samples == 6} == {"model.layers.0", "model.layers.1"}
    assert set(needed.values()) == {1, 6}


@pytest.mark.parametrize("family", ["mixtral", "qwen3_moe"])
def test_a_routers_auxiliary_loss_is_refused(family: str) -> None:
    """It depends on all tokens of a batch at once, so that it is neither trained nor left out silently."""
    config: dict[str, Any] = {"model_type": family, **SIZES, "output_router_logits": True}
    with pytest.raises(Refused, match="output_router_logits is true.*is not trained here"):
        configuration(ModelRequest(task=LANGUAGE, config=config))


def experts(dtype: torch.dtype) -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    """Return a layer's experts, of which one gets no token, and tokens with their expert ids and weights."""
    config = configuration(ModelRequest(task=LANGUAGE, config=dict(MIXTRAL.config)))
    use_recordable_experts(config)
    drawn = torch.Generator().manual_seed(1)
    module = MixtralExperts(config).to(dtype)
    for parameter in module.parameters():
        parameter.data.normal_(generator=drawn)
    hidden = torch.randn(7, 32, generator=drawn, dtype=dtype)
    ids = torch.tensor([[0, 3], [3, 1], [1, 0], [0, 1], [3, 0], [1, 3], [0, 1]])
    return module, (hidden, ids, torch.rand(7, 2, generator=drawn, dtype=dtype))


def test_experts_run_in_double_precision_too() -> None:
    """transformers' default cannot; the result and all gradients are those of its loop over experts, but for
    rounding, which is measured as the change that another order of the tokens causes.
    """
    module, (hidden, ids, shares) = experts(torch.float64)
    outcomes = []
    for implementation, order in (
        ("recordable", torch.arange(7)),
        ("eager", torch.arange(7)),
        ("eager", torch.arange(7).flip(0)),
    ):
        # private: transformers sets it publicly of whole models alone
        module.config._experts_implementation = implementation  # type: ignore[union-attr]
        module.zero_grad()
        result = module(hidden[order], ids[order], shares[order])
        (result**2).sum().backward()
        outcomes.append([result[order.argsort()].detach(), *(p.grad.clone() for p in module.parameters())])  # type: ignore[union-attr]
    for ours, loop, moved in zip(*outcomes, strict=True):
        floor = max(float((moved - loop).norm()), torch.finfo(torch.float64).eps * float(loop.norm()))
        assert float((ours - loop).norm()) <= 20 * floor


def test_experts_count_the_same_operations_with_and_without_values() -> None:
    """The stand-in for tensors without values has the shape and the FLOPs of the real product, backward included."""
    counts = []
    for device in ("cpu", "meta"):
        module, given = experts(torch.float32)
        hidden, ids, shares = (tensor.to(device) for tensor in given)
        with FlopCounterMode(display=False) as counter:
            result = run_experts(module.to(device), hidden.requires_grad_(), ids, shares)
            result.backward(torch.ones_like(result))
        counts.append(counter.get_total_flops())
        assert result.shape == (7, 32)
    rows, width, inner = 14, 32, 64
    assert counts == [3 * 2 * rows * width * (2 * inner + inner)] * 2
