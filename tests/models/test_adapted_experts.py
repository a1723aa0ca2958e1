"""LoRA on the experts of a mixture, which PEFT adapts as parameters and not as layers."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM

from benchmarks.families.small_configs import small_config
from fleetune.contracts.run_config import Lora, ModelRequest
from fleetune.models.export import export_model
from fleetune.models.init_weights import INIT_WEIGHTS, initial_model, write_init_weights
from fleetune.models.skeleton import skeleton
from fleetune.models.source import configuration
from fleetune.models.units import tied_adapter_layers
from fleetune.models.weights import base_name
from fleetune.preparation.step_comparison import Samples, compare_step
from fleetune.profiling.memory import unit_memory
from tests.support.models.instances import batch, recorded
from tests.support.training.model_families import LANGUAGE, Family

ALL = Lora(r=2, alpha=4, targets="all-linear")
IDS = torch.arange(3, 23)[None]

pytestmark = pytest.mark.filterwarnings("ignore")  # PEFT warns of its own settings for experts


def mixture(kind: str) -> Family:
    """A small mixture of experts."""
    return Family(kind, LANGUAGE, small_config(kind))


@pytest.mark.parametrize("kind", ["mixtral", "qwen3_moe", "olmoe"])
def test_a_recorded_step_of_adapted_experts_is_their_own(kind: str, tmp_path: Path) -> None:
    """Bug: tensors of experts have two layers of PEFT around them, and their names were not found without them."""
    family = mixture(kind)
    ready = recorded(family, tmp_path, lora=ALL)
    model = ready.whole()
    adapted = {name for name, p in model.named_parameters() if p.requires_grad and "experts" in name}
    assert len(adapted) == 8, "A and B of two parameters in two layers"
    inputs = batch(family, 4)
    samples = Samples(inputs=inputs, labels=inputs["input_ids"].clone(), task=LANGUAGE, seed=5)
    assert compare_step(ready.graph, model, samples) is None
    assert tied_adapter_layers(model) == (), "Bug: it looked for a weight by the name that a layer's has"


def test_shared_experts_are_named_by_their_parameters(tmp_path: Path) -> None:
    """Experts of two layers that are one cannot be merged; each of their parameters is named as the model names it."""
    model = recorded(mixture("mixtral"), tmp_path, lora=ALL).whole()
    first, second = (model.get_submodule(f"base_model.model.model.layers.{layer}.mlp") for layer in (0, 1))
    second.experts = first.experts
    names = {f"model.layers.0.mlp.experts.{name}" for name in ("gate_up_proj", "down_proj")}
    assert set(tied_adapter_layers(model)) == names


def test_adapted_experts_are_measured_without_data(tmp_path: Path) -> None:
    """Bug: torch knows no autocast on the meta device, and could not turn it off there: the profile stage failed."""
    ready = recorded(mixture("mixtral"), tmp_path, lora=ALL)
    needs = unit_memory(ready.graph, skeleton(configuration(ready.request, ready.labels), ready.request))
    assert all(need.sample_bytes > 0 for need in needs.values())


def test_trained_experts_load_with_peft_as_they_were_trained(tmp_path: Path) -> None:
    """A base as the hub has it, with a tensor for each expert, and the exported adapter give the trained logits."""
    torch.manual_seed(0)
    plain = AutoModelForCausalLM.from_config(configuration(ModelRequest(task=LANGUAGE, config=small_config("mixtral"))))
    plain.save_pretrained(tmp_path / "base")
    request = ModelRequest(task=LANGUAGE, source=str(tmp_path / "base"), lora=ALL)
    config = configuration(request)
    write_init_weights(config, request, 3, tmp_path / INIT_WEIGHTS)
    model: Any = initial_model(config, request, tmp_path / INIT_WEIGHTS)
    frozen = {base_name(name): p for name, p in model.named_parameters() if not p.requires_grad}
    assert all(torch.equal(frozen[name], p) for name, p in plain.named_parameters())
    generator = torch.Generator().manual_seed(1)
    trained = {
        name: torch.randn(p.shape, generator=generator) / 10 for name, p in model.named_parameters() if p.requires_grad
    }
    model.load_state_dict(trained, strict=False)
    folder = export_model(config, request, tmp_path / INIT_WEIGHTS, trained, tmp_path / "out")
    base = AutoModelForCausalLM.from_pretrained(tmp_path / "base", dtype=torch.float32)
    theirs = PeftModel.from_pretrained(base, folder).eval()
    with torch.no_grad():
        assert torch.equal(theirs(input_ids=IDS).logits, model(input_ids=IDS).logits)
        assert (theirs(input_ids=IDS).logits - plain(input_ids=IDS).logits).abs().max() > 1e-3
    further = replace(request, lora=replace(ALL, start=str(folder)))
    write_init_weights(config, further, 3, tmp_path / "again")
    again: Any = initial_model(config, further, tmp_path / "again")
    assert torch.equal(again(input_ids=IDS).logits, model(input_ids=IDS).logits), "training goes on from there"
