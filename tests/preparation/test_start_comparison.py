"""What training starts from is compared with what transformers loads of the same folder."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, LlamaForCausalLM, ResNetForImageClassification

from benchmarks.families.small_configs import small_config
from fleetune.contracts.run_config import DataRequest, Lora, ModelRequest
from fleetune.errors import Refused
from fleetune.models.init_weights import INIT_WEIGHTS, write_init_weights
from fleetune.models.source import configuration
from fleetune.preparation.prepare import prepare
from fleetune.preparation.start_comparison import compare_start
from tests.support.preparation.instances import preparation_task

LANGUAGE, TEXT, IMAGE, PAIRS = "causal-lm", "sequence-classification", "image-classification", "seq2seq"


def saved(model_type: str, class_name: str, folder: Path) -> str:
    """Save a small random model as transformers does."""
    changes = small_config(model_type)
    changes.pop("model_type")
    torch.manual_seed(0)
    config = type(AutoConfig.for_model(model_type))(**changes)
    getattr(transformers, class_name)(config).save_pretrained(folder)
    return str(folder)


def compared(request: ModelRequest, folder: Path, change: Callable[[Any], Any] = lambda tensors: tensors) -> str | None:
    """Compare the start of a request, changed beforehand."""
    config = configuration(request, ("a", "b") if request.task in (TEXT, IMAGE) else ())
    write_init_weights(config, request, 3, folder / INIT_WEIGHTS)
    save_file(change(load_file(folder / INIT_WEIGHTS)), folder / INIT_WEIGHTS)
    return compare_start(config, request, folder / INIT_WEIGHTS)


@pytest.mark.parametrize(
    ("model_type", "class_name", "task"),
    [
        ("bert", "BertForMaskedLM", TEXT),
        ("gpt2", "GPT2LMHeadModel", LANGUAGE),
        ("mixtral", "MixtralForCausalLM", LANGUAGE),
        ("mistral3", "Mistral3ForConditionalGeneration", LANGUAGE),
        ("t5", "T5ForConditionalGeneration", PAIRS),
        ("marian", "MarianMTModel", PAIRS),
        ("xlnet", "XLNetForSequenceClassification", TEXT),
        ("resnet", "ResNetForImageClassification", IMAGE),
        ("dinov3_vit", "DINOv3ViTModel", IMAGE),
    ],
)
def test_the_start_is_what_transformers_loads(model_type: str, class_name: str, task: str, tmp_path: Path) -> None:
    """Parameters, buffers and ties agree for text parts, experts, tied heads, batch norms and new heads."""
    request = ModelRequest(task=task, source=saved(model_type, class_name, tmp_path / "model"))
    assert compared(request, tmp_path) is None


def test_every_preparation_compares_the_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A preparation tells what its comparison tells, here that there is no memory for it."""
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=1000))
    request = ModelRequest(task=IMAGE, source=saved("resnet", "ResNetForImageClassification", tmp_path / "model"))
    task = preparation_task(tmp_path, request, DataRequest(source="digits", train_samples=8, test_samples=8))
    notes: list[str] = []
    prepare(replace(task, note=notes.append))
    assert any("the start was not compared with what transformers loads" in note for note in notes), notes


@pytest.mark.parametrize("precision", ["float32", "float64"])
def test_the_base_below_an_adapter_is_compared(precision: str, tmp_path: Path) -> None:
    """The frozen weights are compared in the precision of training, quantised ones before they are packed, and the
    head that is trained beside the adapter starts from the folder's."""
    source = saved("bert", "BertForSequenceClassification", tmp_path / "model")
    packed = "nf4" if precision == "float32" else None
    request = ModelRequest(
        task=TEXT, source=source, lora=Lora(targets=("query",)), precision=precision, quantization=packed
    )
    assert compared(request, tmp_path) is None

    def other_head(tensors: Any) -> Any:
        return {name: tensor + (".modules_to_save." in name) for name, tensor in tensors.items()}

    with pytest.raises(Refused, match=r"classifier\.modules_to_save\.default\.bias would start from other values"):
        compared(request, tmp_path, other_head)


def test_a_tensor_with_other_values_is_refused_by_name(tmp_path: Path) -> None:
    """One number of one tensor is enough; the refusal names the tensor and the folder."""
    request = ModelRequest(task=LANGUAGE, source=saved("llama", "LlamaForCausalLM", tmp_path / "model"))
    name = "model.layers.1.mlp.down_proj.weight"
    theirs = LlamaForCausalLM.from_pretrained(tmp_path / "model").get_parameter(name).detach().clone()
    theirs[0, 0] += 1e-6

    with pytest.raises(Refused, match=rf"{name} would start from other values than transformers loads of .*/model;"):
        compared(request, tmp_path, lambda tensors: {**tensors, name: theirs})


@pytest.mark.parametrize("number", [float("nan"), float("inf")])
def test_weights_that_are_no_numbers_are_refused_by_name(number: float, tmp_path: Path) -> None:
    """Bug: one NaN of a base was refused as a graph that computes otherwise than the model."""
    request = ModelRequest(task=LANGUAGE, source=saved("llama", "LlamaForCausalLM", tmp_path / "model"))
    file, name = tmp_path / "model" / "model.safetensors", "model.layers.1.mlp.up_proj.weight"
    tensors = load_file(file)
    tensors[name][0, 0] = number
    save_file(tensors, file, metadata={"format": "pt"})
    with pytest.raises(Refused, match=rf"{name} of .*/model holds NaN or infinity"):
        compared(request, tmp_path)


def test_what_transformers_does_not_find_is_to_be_renamed(tmp_path: Path) -> None:
    """Bug: the refusal of tensors with a prefix said to load them with transformers and to save them again, which
    gives a model of random weights that passes."""
    request = ModelRequest(task=LANGUAGE, source=saved("llama", "LlamaForCausalLM", tmp_path / "model"))
    file = tmp_path / "model" / "model.safetensors"
    save_file({f"language_model.{n}": t for n, t in load_file(file).items()}, file, metadata={"format": "pt"})
    with pytest.raises(Refused, match=r"finds no lm_head\.weight in .*/model, .*; rename the tensors") as found:
        compared(request, tmp_path)
    assert "save it again" not in str(found.value)


@pytest.mark.parametrize("whose", ["ours", "theirs"])
def test_a_tensor_without_a_partner_is_refused_by_name(
    whose: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What only one of the two readers has is no equality: an adapter that transformers alone applied passed."""
    request = ModelRequest(task=LANGUAGE, source=saved("llama", "LlamaForCausalLM", tmp_path / "model"))
    real = LlamaForCausalLM.from_pretrained

    def other(*given: Any, **settings: Any) -> Any:
        model, found = real(*given, **settings)
        if whose == "theirs":
            model.model.layers[1].register_buffer("of_an_adapter", torch.ones(1))
        else:
            del model.model.layers[1].mlp.down_proj
        return model, found

    monkeypatch.setattr(LlamaForCausalLM, "from_pretrained", other)
    name = r"layers\.1\.of_an_adapter is loaded by tr" if whose == "theirs" else r"mlp\.down_proj\.weight is trained of"
    with pytest.raises(Refused, match=rf"{name}.*/model \(1 such tensor.* to compare it with"):
        compared(request, tmp_path)


def test_a_comparison_that_is_not_made_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where memory does not suffice, or transformers does not load the folder, the run says so."""
    request = ModelRequest(task=IMAGE, source=saved("resnet", "ResNetForImageClassification", tmp_path / "model"))
    config = configuration(request, ("a", "b"))
    start = tmp_path / INIT_WEIGHTS
    write_init_weights(config, request, 3, start)

    def fails(*_: Any, **__: Any) -> Any:
        raise OSError("out of patience")

    with monkeypatch.context() as patched:
        patched.setattr(ResNetForImageClassification, "from_pretrained", fails)
        assert "does not load it by itself (out of patience)" in str(
            compare_start(config, request, tmp_path / INIT_WEIGHTS)
        )
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=1000))
    assert "GB are free" in str(compare_start(config, request, tmp_path / INIT_WEIGHTS))
