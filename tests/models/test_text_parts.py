"""The text part of a model of several parts trains by itself, from a folder of the whole model."""

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from torch import nn
from transformers import AutoConfig

from benchmarks.families.small_configs import small_config
from fleetune.contracts.run_config import Lora, ModelRequest
from fleetune.errors import Refused
from fleetune.models.init_weights import INIT_WEIGHTS, initial_model, write_init_weights
from fleetune.models.model_inputs import input_spec
from fleetune.models.skeleton import base_skeleton
from fleetune.models.source import configuration

LANGUAGE = "causal-lm"


def saved(model_type: str, class_name: str, folder: Path) -> nn.Module:
    """Save a small random model as the hub has it, and return it."""
    changes = small_config(model_type)
    changes.pop("model_type")
    torch.manual_seed(0)
    model = getattr(transformers, class_name)(type(AutoConfig.for_model(model_type))(**changes)).eval()
    model.save_pretrained(folder)
    whole: nn.Module = model
    return whole


def started(folder: Path, **changes: Any) -> nn.Module:
    """Return the model that training starts from."""
    request = ModelRequest(task=LANGUAGE, source=str(folder), **changes)
    config = configuration(request)
    write_init_weights(config, request, 3, folder / INIT_WEIGHTS)
    return initial_model(config, request, folder / INIT_WEIGHTS)


@pytest.mark.parametrize(
    "model_type, class_name, part",
    [
        ("mistral3", "Mistral3ForConditionalGeneration", "MistralForCausalLM"),
        ("idefics3", "Idefics3ForConditionalGeneration", "LlamaForCausalLM"),
        ("internvl", "InternVLForConditionalGeneration", "Qwen2ForCausalLM"),
    ],
)
def test_the_text_part_computes_what_the_whole_model_does_of_a_text(
    model_type: str, class_name: str, part: str, tmp_path: Path
) -> None:
    """Its tensors are found under the names that whole models have, tied heads included, and all logits' bits agree.

    Bug: that the other parts are not in the trained model was not told."""
    whole = saved(model_type, class_name, tmp_path)
    model = started(tmp_path)
    assert type(model).__name__ == part
    (told,) = write_init_weights(model.config, ModelRequest(task=LANGUAGE, source=str(tmp_path)), 3, tmp_path / "again")
    assert f"the text part alone is trained and saved, as a {part}: " in told and "vision" in told
    ids = torch.arange(14).view(2, 7) + 5
    with torch.no_grad():
        assert torch.equal(model(input_ids=ids).logits, whole(input_ids=ids).logits)
    assert input_spec(ModelRequest(task=LANGUAGE, source=str(tmp_path))).vocab_size == 320


def test_what_a_text_part_cannot_do_is_refused(tmp_path: Path) -> None:
    """An adapter of a part fits no saved model, and a folder that lacks a tensor of the part is not filled up."""
    saved("mistral3", "Mistral3ForConditionalGeneration", tmp_path)
    with pytest.raises(Refused, match=r"only the text part \(mistral\) can do causal-lm, and an adapter of a part"):
        started(tmp_path, lora=Lora(targets="all-linear"))
    tensors = load_file(tmp_path / "model.safetensors")
    lost = next(name for name in tensors if "down_proj" in name and "language_model" in name)
    save_file({name: tensor for name, tensor in tensors.items() if name != lost}, tmp_path / "model.safetensors")
    with pytest.raises(Refused, match=r"has no tensor for model\.layers\.0\.mlp\.down_proj\.weight .*of its text part"):
        started(tmp_path)


def test_a_part_that_computes_otherwise_than_its_whole_is_refused() -> None:
    """Cohere's vision models do not scale their logits as their text part does by itself."""
    request = ModelRequest(task=LANGUAGE, config=small_config("cohere2_vision"))
    with pytest.raises(Refused, match="Cohere2VisionConfig cannot do causal-lm"):
        base_skeleton(configuration(request), request)


def test_a_folder_of_another_model_is_refused(tmp_path: Path) -> None:
    """Bug: a folder without one tensor of the model's body trained from random weights."""
    saved("llama", "LlamaForCausalLM", tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    save_file({f"other.{name}": tensor for name, tensor in tensors.items()}, tmp_path / "model.safetensors")
    with pytest.raises(Refused, match="no tensor of the body of LlamaForCausalLM is in its files"):
        started(tmp_path)
