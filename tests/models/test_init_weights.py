"""Initial weights: pretrained values where there are any, the rest drawn once from one seed."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    MarianConfig,
    MarianMTModel,
)

from benchmarks.families.small_configs import small_config
from fleetune.contracts.run_config import Lora, ModelRequest
from fleetune.contracts.tasks import SEQ2SEQ
from fleetune.errors import Refused
from fleetune.models.init_weights import initial_model, write_init_weights
from fleetune.models.skeleton import base_skeleton, skeleton
from fleetune.models.source import configuration
from fleetune.models.start_adapter import other_base
from tests.support.models.instances import LABELS, batch
from tests.support.training.model_families import BY_NAME, FAMILIES, LANGUAGE, TEXT, Family, model_request

ADAPTERS = Lora(r=2, alpha=4, targets=("query",))
HEAD = "base_model.model.classifier.modules_to_save.default.weight"


def drawn(request: ModelRequest, path: Path, seed: int = 3) -> dict[str, torch.Tensor]:
    """Return the tensors that write_init_weights writes."""
    write_init_weights(configuration(request, LABELS), request, seed, path)
    return load_file(path)


def pretrained(folder: Path) -> ModelRequest:
    """Save a BERT for three classes with known weights, as transformers saves it."""
    request = model_request(BY_NAME["bert"], dropout=True)
    torch.manual_seed(11)
    AutoModelForSequenceClassification.from_config(configuration(request, LABELS)).save_pretrained(folder)
    return ModelRequest(task=TEXT, source=str(folder))


@pytest.mark.parametrize("family", FAMILIES, ids=lambda f: f.name)
def test_one_seed_gives_one_start(family: Family, tmp_path: Path) -> None:
    """The same seed gives the same bytes, another seed another model.

    Every parameter is there, finite, and not a constant 0 where transformers draws.
    """
    request = model_request(family, dropout=True)
    first = drawn(request, tmp_path / "a")
    drawn(request, tmp_path / "b")
    other = drawn(request, tmp_path / "c", seed=4)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    labels = LABELS if family.task != LANGUAGE else ()
    parameters = {n for n, _ in base_skeleton(configuration(request, labels), request).named_parameters()}
    assert parameters <= first.keys()
    assert all(torch.isfinite(t).all() for t in first.values())
    moved = [n for n in first if n.endswith("weight") and not torch.equal(first[n], other[n])]
    assert len(moved) > len([n for n in parameters if n.endswith("weight") and first[n].dim() > 1]) - 2


def test_positions_that_are_computed_are_not_trained_with_an_adapter(tmp_path: Path) -> None:
    """Bug: files of Marian lack its sinusoidal positions, which were taken for a part that is drawn and trained. They
    are those of transformers, and only the adapter is trained."""
    config = MarianConfig(
        vocab_size=40, d_model=32, encoder_layers=1, decoder_layers=1, encoder_attention_heads=2,
        decoder_attention_heads=2, encoder_ffn_dim=64, decoder_ffn_dim=64, max_position_embeddings=24, pad_token_id=0,
        decoder_start_token_id=0, eos_token_id=1, forced_eos_token_id=1,
    )  # fmt: skip
    plain = MarianMTModel(config)
    plain.save_pretrained(tmp_path / "marian")
    held = load_file(tmp_path / "marian" / "model.safetensors")
    assert not any("embed_positions" in name for name in held), "as real files"
    request = ModelRequest(task=SEQ2SEQ, source=str(tmp_path / "marian"), lora=Lora(r=2, targets=("q_proj",)))
    whole = skeleton(configuration(request, ()), request)
    assert all("lora_" in name for name, parameter in whole.named_parameters() if parameter.requires_grad)
    write_init_weights(configuration(request, ()), request, 3, tmp_path / "start")
    made = initial_model(configuration(request, ()), request, tmp_path / "start").state_dict()
    positions = [name for name in made if "embed_positions" in name]
    assert len(positions) == 2
    for name in positions:
        assert torch.equal(made[name], plain.state_dict()[name.removeprefix("base_model.model.")])


def test_the_random_model_is_drawn_as_transformers_draws(tmp_path: Path) -> None:
    """Values have the same spread, norm layers are one, biases are zero."""
    request = model_request(BY_NAME["bert"], dropout=True)
    ours = drawn(request, tmp_path / "start")
    theirs = AutoModelForSequenceClassification.from_config(configuration(request, LABELS)).state_dict()
    for name, tensor in theirs.items():
        if tensor.numel() > 500:
            assert 0.8 < float(ours[name].std() / tensor.std()) < 1.25, name
        elif name.endswith(("LayerNorm.weight", "bias")):
            assert torch.equal(ours[name], tensor), name


def test_only_what_the_files_lack_is_drawn(tmp_path: Path) -> None:
    """A complete pretrained model needs only its unsaved buffers; with more classes, also a head."""
    request = pretrained(tmp_path / "model")
    assert not [n for n in drawn(request, tmp_path / "start") if n.endswith(("weight", "bias"))]
    write_init_weights(configuration(request, (*LABELS, "d")), request, 3, tmp_path / "more")
    more = {n for n in load_file(tmp_path / "more") if n.endswith(("weight", "bias"))}
    assert more == {"classifier.weight", "classifier.bias"}


def test_the_whole_model_is_the_one_transformers_loads(tmp_path: Path) -> None:
    """initial_model on a pretrained folder gives the logits that from_pretrained gives."""
    request = pretrained(tmp_path / "model")
    drawn(request, tmp_path / "start")
    ours = initial_model(configuration(request, LABELS), request, tmp_path / "start")
    theirs = AutoModelForSequenceClassification.from_pretrained(tmp_path / "model").eval()
    given = batch(BY_NAME["bert"], 3)
    assert torch.equal(ours(**given).logits, theirs(**given).logits)


def test_tied_weights_are_one_object(tmp_path: Path) -> None:
    """GPT-2's embedding is its head."""
    request = model_request(BY_NAME["gpt2"], dropout=True)
    made = drawn(request, tmp_path / "start")
    model: Any = initial_model(configuration(request), request, tmp_path / "start")
    assert model.lm_head.weight is model.transformer.wte.weight
    assert "lm_head.weight" not in made
    assert isinstance(model, type(AutoModelForCausalLM.from_config(configuration(request))))


def test_new_adapters_change_nothing_yet(tmp_path: Path) -> None:
    """LoRA's B is zero and its A is not: the model with adapters gives the logits of the model without."""
    plain = pretrained(tmp_path / "model")
    request = ModelRequest(task=TEXT, source=plain.source, lora=ADAPTERS)
    made = drawn(request, tmp_path / "start")
    assert all(not t.any() for n, t in made.items() if "lora_B" in n)
    assert all(t.any() for n, t in made.items() if "lora_A" in n)
    assert sum("lora_" in n for n in made) == 4
    drawn(plain, tmp_path / "plain")
    given = batch(BY_NAME["bert"], 3)
    adapted: nn.Module = initial_model(configuration(request, LABELS), request, tmp_path / "start")
    bare = initial_model(configuration(plain, LABELS), plain, tmp_path / "plain")
    assert torch.equal(adapted(**given).logits, bare(**given).logits)


def test_adapters_over_a_pretrained_head_train_that_head(tmp_path: Path) -> None:
    """If the file has a head of the right size, its trained copy starts from it; else from the drawn one."""
    source = pretrained(tmp_path / "model").source
    stored = load_file(tmp_path / "model" / "model.safetensors")
    request = ModelRequest(task=TEXT, source=source, lora=ADAPTERS)
    assert torch.equal(drawn(request, tmp_path / "start")[HEAD], stored["classifier.weight"])
    write_init_weights(configuration(request, (*LABELS, "d")), request, 3, tmp_path / "more")
    more = load_file(tmp_path / "more")
    assert torch.equal(more[HEAD], more["base_model.model.classifier.original_module.weight"])
    assert more[HEAD].shape == (4, 32)


def adapter(
    folder: Path, r: int = 2, key: str = "query", stored_r: int = 0, classes: int = 3, width: int = 32, **settings: Any
) -> str:
    """Write a PEFT adapter folder of ones."""
    folder.mkdir()
    stem = "base_model.model.bert.encoder.layer"
    rows = stored_r or r
    tensors = {f"{stem}.{n}.attention.self.{key}.lora_A.weight": torch.ones(rows, width) for n in (0, 1)}
    tensors.update({f"{stem}.{n}.attention.self.{key}.lora_B.weight": torch.ones(width, rows) for n in (0, 1)})
    tensors["base_model.model.classifier.weight"] = torch.full((classes, width), 2.0)
    tensors["base_model.model.classifier.bias"] = torch.full((classes,), 2.0)
    save_file(tensors, folder / "adapter_model.safetensors")
    (folder / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA", "r": r, "lora_alpha": 4, **settings}))
    return str(folder)


@pytest.mark.parametrize("precision", ["float32", "float64"])
def test_training_goes_on_from_a_given_adapter(precision: str, tmp_path: Path) -> None:
    """Training starts from its matrices and its head, in the precision of training."""
    lora = Lora(r=2, alpha=4, targets=("query",), start=adapter(tmp_path / "adapter"))
    source = pretrained(tmp_path / "model").source
    made = drawn(ModelRequest(task=TEXT, source=source, lora=lora, precision=precision), tmp_path / "start")
    given = [t for n, t in made.items() if "lora_" in n]
    assert len(given) == 4 and all(torch.equal(t, torch.ones_like(t)) for t in given)
    assert torch.equal(made[HEAD], torch.full((3, 32), 2.0, dtype=getattr(torch, precision)))
    assert all(str(t.dtype) == f"torch.{precision}" for t in given)


@pytest.mark.parametrize(
    "changes, why",
    [
        ({"r": 4}, r"r is 4, but model\.lora\.r is 2, by which .*give lora\.r: 4"),
        ({"stored_r": 4}, r"lora_A\.weight is \[4, 32\], but by its .* rank 2, which asks for \[2, 32\]; save"),
        ({"classes": 5}, r"classifier\.bias is \[5\]: the adapter's head is for 5 classes, but the data have 3"),
        ({"width": 48}, r"lora_A\.weight is \[2, 48\], but the model has \[2, 32\] there: the adapter was made for an"),
        ({"key": "value"}, "value.lora_A.weight adapts a layer that lora.targets leaves out"),
        ({"lora_alpha": 64}, r"lora_alpha is 64, but model\.lora\.alpha is 4, .*give lora\.alpha: 64"),
        ({"use_rslora": True}, "use_rslora is True, which model.lora does not have, .*merge it into its base"),
        ({"use_dora": True}, "use_dora is True, which model.lora does not have"),
        ({"rank_pattern": {"query": 2}}, "rank_pattern is {'query': 2}, which"),
        ({"bias": "lora_only"}, "bias is 'lora_only', which"),
        ({"init_lora_weights": "pissa_niter_4"}, "init_lora_weights is 'pissa_niter_4', which"),
        ({"peft_type": "IA3"}, "peft_type is 'IA3', but only LORA can be trained on"),
    ],
)
def test_an_adapter_that_does_not_fit_is_refused(changes: dict[str, Any], why: str, tmp_path: Path) -> None:
    """Another rank would be scaled wrongly, and other targets would be left out.

    Bug: the adapter's own settings were not read, so that one with lora_alpha 64 started as one with 16.
    """
    lora = Lora(r=2, alpha=4, targets=("query",), start=adapter(tmp_path / "adapter", **changes))
    request = ModelRequest(task=TEXT, source=pretrained(tmp_path / "model").source, lora=lora)
    with pytest.raises(Refused, match=why):
        drawn(request, tmp_path / "start")


@pytest.mark.parametrize(
    ("named", "source", "told"),
    [
        ("google-bert/bert-base-uncased", "FacebookAI/roberta-base", True),
        ("models/bert-base-uncased", "google-bert/BERT-base-uncased", False),
        ("/cache/models--google-bert--bert-base-uncased/snapshots/86b5e0934494bd15", "bert-base-uncased", False),
        ("/cache/models--gpt2/snapshots/607a30d783dfa663", "bert-base-uncased", True),
        ("../base", "bert-base-uncased", False),
        ("bert-base-uncased", "package:minilm", False),
        (None, "bert-base-uncased", False),
        ("bert-base-uncased", None, False),
    ],
)
def test_an_adapter_of_another_model_is_told(named: str | None, source: str | None, told: bool, tmp_path: Path) -> None:
    """A note has both names where their last parts differ in more than capitals; nothing is guessed without a name."""
    note = other_base(Path(adapter(tmp_path / "adapter", base_model_name_or_path=named)), source)
    assert bool(note) == told
    assert not told or (f"was made for {named}" in note and f"model.source is {source}" in note)


def test_a_folder_without_an_adapter_is_refused(tmp_path: Path) -> None:
    """The refusal names the missing file."""
    lora = Lora(r=2, alpha=4, targets=("query",), start=str(tmp_path))
    request = ModelRequest(task=TEXT, source=pretrained(tmp_path / "model").source, lora=lora)
    with pytest.raises(Refused, match=r"has no adapter_config\.json; give the folder of a PEFT adapter"):
        drawn(request, tmp_path / "start")
    (tmp_path / "adapter_config.json").write_text('{"peft_type": "LORA", "r": 2, "lora_alpha": 4}')
    with pytest.raises(Refused, match=r"adapter_model\.safetensors: not a readable adapter"):
        drawn(request, tmp_path / "start")


def test_parameters_made_of_memory_as_it_is_come_from_the_files(tmp_path: Path) -> None:
    """Bug: XLNet creates some parameters outside the meta device, and their uninitialised memory replaced the values of
    the pretrained files.
    """
    config = {"model_type": "xlnet", "d_model": 32, "n_layer": 1, "n_head": 2, "d_inner": 64, "vocab_size": 50}
    plain = ModelRequest(task=TEXT, config=config)
    torch.manual_seed(5)
    theirs = AutoModelForSequenceClassification.from_config(configuration(plain, LABELS))
    theirs.save_pretrained(tmp_path / "pretrained")
    request = ModelRequest(task=TEXT, source=str(tmp_path / "pretrained"))
    made = dict(base_skeleton(configuration(request, LABELS), request).named_parameters())
    assert not all(parameter.is_meta for parameter in made.values())
    write_init_weights(configuration(request, LABELS), request, 3, tmp_path / "start")
    ours = initial_model(configuration(request, LABELS), request, tmp_path / "start").state_dict()
    assert all(torch.equal(ours[name], tensor) for name, tensor in theirs.state_dict().items())


@pytest.mark.parametrize("model_type", ["data2vec-text", "apertus"])
def test_what_the_initialisation_leaves_out_starts_as_constructed(model_type: str, tmp_path: Path) -> None:
    """Bug: Data2Vec's head got a bias, and Apertus's activations factors, of memory that nothing had written: other
    ones in each run, up to 1e36 and NaN."""
    request = ModelRequest(task="causal-lm", config=small_config(model_type))
    config = configuration(request)
    write_init_weights(config, request, 3, tmp_path / "start.safetensors")
    found = dict(initial_model(config, request, tmp_path / "start.safetensors").named_parameters())
    made = AutoModelForCausalLM.from_config(config)
    names = [name for name in found if name.endswith(("lm_head.bias", "alpha_p", "alpha_n"))]
    assert names and all(torch.equal(found[name], made.get_parameter(name)) for name in names)
