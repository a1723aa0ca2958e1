"""Training goes on from adapters that PEFT wrote, as PEFT itself loads them, or they are refused for what is so."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file, save_file
from torch import nn
from transformers import (
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    DebertaV2Config,
    DebertaV2ForSequenceClassification,
    LlamaConfig,
    LlamaForCausalLM,
    LlamaModel,
)

from fleetune.contracts.run_config import Lora, ModelRequest
from fleetune.errors import Refused
from fleetune.models.init_weights import INIT_WEIGHTS, initial_model, write_init_weights
from fleetune.models.source import configuration

LANGUAGE, TEXT = "causal-lm", "sequence-classification"
IDS = torch.arange(3, 23)[None]
WEIGHTS = "adapter_model.safetensors"

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")  # PEFT asks transformers for what has a new name


@pytest.fixture
def base(tmp_path: Path) -> Path:
    """The folder of a small Llama of random weights."""
    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=2, intermediate_size=64,
        vocab_size=60, tie_word_embeddings=False,
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(tmp_path / "base")
    return tmp_path / "base"


def adapted(base: Path, auto: Any, targets: list[str], embeddings: bool = False, **settings: Any) -> nn.Module:
    """Save an adapter that changes what the base computes, as PEFT saves it; return the adapted model."""
    config = LoraConfig(target_modules=targets, **{"r": 2, "lora_alpha": 16, **settings})
    model: Any = get_peft_model(auto.from_pretrained(base, dtype=torch.float32), config).eval()
    for name, parameter in model.named_parameters():
        if "lora_" in name:
            nn.init.normal_(parameter, std=0.1)
    model.save_pretrained(base.parent / "adapter", save_embedding_layers=embeddings)
    whole: nn.Module = model
    return whole


def start(base: Path, targets: list[str], task: str = LANGUAGE, r: int = 2, alpha: float = 16) -> Any:
    """The model that training on that adapter starts from."""
    lora = Lora(r=r, alpha=alpha, targets=tuple(targets), start=str(base.parent / "adapter"))
    request = ModelRequest(task=task, source=str(base), lora=lora)
    config = configuration(request, ("a", "b") if task == TEXT else ())
    write_init_weights(config, request, 3, base.parent / INIT_WEIGHTS)
    return initial_model(config, request, base.parent / INIT_WEIGHTS)


@pytest.mark.parametrize("embeddings", [False, True], ids=["alone", "repeated"])
@pytest.mark.parametrize("targets", [["embed_tokens", "q_proj"], ["lm_head", "embed_tokens"]])
def test_an_adapter_of_embeddings_starts_as_peft_left_it(targets: list[str], embeddings: bool, base: Path) -> None:
    """Bug: PEFT's own adapter of embeddings, whose tensors have names without `.weight`, was refused as one of other
    targets. All logits' bits are those of the model that saved it, whether or not it repeats the embeddings."""
    theirs = adapted(base, AutoModelForCausalLM, targets, embeddings, task_type="CAUSAL_LM")
    assert torch.equal(start(base, targets)(input_ids=IDS).logits, theirs(input_ids=IDS).logits)


def test_an_adapter_of_a_bare_body_adapts_the_body_of_a_model_with_a_head(base: Path) -> None:
    """AutoModel makes bodies without a head, whose names lack the body's own; the adapted body computes the same."""
    theirs: Any = adapted(base, AutoModel, ["q_proj", "v_proj"])
    assert isinstance(theirs.get_base_model(), LlamaModel)
    ours = start(base, ["q_proj", "v_proj"])
    hidden = theirs(input_ids=IDS).last_hidden_state
    assert torch.equal(ours(input_ids=IDS).logits, ours.get_base_model().lm_head(hidden))


def test_a_classifier_s_adapter_starts_with_its_head(base: Path) -> None:
    """Adapters and head are those that PeftModel loads of the same folder."""
    adapted(base, AutoModelForSequenceClassification, ["q_proj"], task_type="SEQ_CLS")
    ours = start(base, ["q_proj"], TEXT)
    plain = AutoModelForSequenceClassification.from_pretrained(base, pad_token_id=0)
    theirs = PeftModel.from_pretrained(plain, base.parent / "adapter").eval()
    assert torch.equal(ours(input_ids=IDS).logits, theirs(input_ids=IDS).logits)


def test_what_peft_leaves_frozen_of_a_head_starts_from_the_base(tmp_path: Path) -> None:
    """Bug: DeBERTa's pooler, which is trained whole here and not by PEFT, was asked of PEFT's adapter. A start that an
    older version wrote, which did not train it either, is read, too."""
    settings = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64}
    made = DebertaV2ForSequenceClassification(DebertaV2Config(vocab_size=60, **settings))  # type: ignore[arg-type]
    made.save_pretrained(base := tmp_path / "base")
    targets = ["query_proj"]
    theirs = adapted(base, AutoModelForSequenceClassification, targets, task_type="SEQ_CLS")
    ours = start(base, targets, TEXT)
    assert any("pooler.modules_to_save" in name for name, _ in ours.named_parameters())
    assert torch.equal(ours(input_ids=IDS).logits, theirs(input_ids=IDS).logits)
    path = tmp_path / INIT_WEIGHTS
    save_file({name: tensor for name, tensor in load_file(path).items() if "pooler" not in name}, path)
    request = ModelRequest(task=TEXT, source=str(base), lora=Lora(r=2, alpha=16, targets=("query_proj",)))
    older = initial_model(configuration(request, ("a", "b")), request, path)
    assert torch.equal(older(input_ids=IDS).logits, theirs(input_ids=IDS).logits)


def test_an_adapter_inside_a_head_that_is_trained_whole_is_refused_by_name(tmp_path: Path) -> None:
    """It is told why: the head itself is trained here."""
    settings = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64}
    made = DebertaV2ForSequenceClassification(DebertaV2Config(vocab_size=60, **settings))  # type: ignore[arg-type]
    made.save_pretrained(base := tmp_path / "base")
    adapted(base, AutoModelForSequenceClassification, ["dense"], task_type="SEQ_CLS")
    with pytest.raises(Refused, match="adapts a layer of pooler, which is trained whole here; merge the adapter"):
        start(base, ["dense"], TEXT)


@pytest.mark.filterwarnings("ignore:Model has `tie_word_embeddings")  # PEFT's
@pytest.mark.parametrize("saved", [["lm_head"], ["embed_tokens"], ["norm"], ["embed_tokens", "lm_head"]], ids="+".join)
@pytest.mark.parametrize("tied", [False, True], ids=["apart", "tied"])
def test_an_adapter_with_modules_that_were_trained_whole_is_refused(saved: list[str], tied: bool, base: Path) -> None:
    """Bug: they were taken for the base's own weights, and then refused as if transformers read the base otherwise."""
    config = LlamaConfig.from_pretrained(base, tie_word_embeddings=tied)
    LlamaForCausalLM(config).save_pretrained(base)
    theirs = adapted(base, AutoModelForCausalLM, ["q_proj"], modules_to_save=saved, task_type="CAUSAL_LM")
    with torch.no_grad():
        for name, parameter in theirs.named_parameters():
            if f"{saved[0]}.modules_to_save" in name:
                parameter.add_(1)
    theirs.save_pretrained(base.parent / "adapter")
    why = (
        rf"holds \S*{saved[0]}\S* with other values .*modules_to_save \['.*'\] were\); merge the adapter into its base"
    )
    with pytest.raises(Refused, match=why):
        start(base, ["q_proj"])


def test_an_adapter_that_repeats_tied_embeddings_starts_as_peft_left_it(base: Path) -> None:
    """Bug: the head, which is the embedding, was said to have no place in the model."""
    LlamaForCausalLM(LlamaConfig.from_pretrained(base, tie_word_embeddings=True)).save_pretrained(base)
    theirs = adapted(base, AutoModelForCausalLM, ["q_proj"], True, task_type="CAUSAL_LM")
    assert any("lm_head" in name for name in load_file(base.parent / "adapter" / WEIGHTS))
    assert torch.equal(start(base, ["q_proj"])(input_ids=IDS).logits, theirs(input_ids=IDS).logits)


@pytest.mark.parametrize("name", ["r", "lora_alpha"])
def test_what_an_adapter_leaves_out_is_pefts_default(name: str, base: Path) -> None:
    """Bug: the refusal asked for `lora.alpha: None`. PEFT reads 8 for both; training starts with that, and a request
    for another number is refused with it."""
    adapted(base, AutoModelForCausalLM, ["q_proj"], task_type="CAUSAL_LM", r=8, lora_alpha=8)
    file = base.parent / "adapter" / "adapter_config.json"
    settings = json.loads(file.read_text())
    del settings[name]
    file.write_text(json.dumps(settings))
    plain = AutoModelForCausalLM.from_pretrained(base)
    theirs = PeftModel.from_pretrained(plain, base.parent / "adapter").eval()
    assert torch.equal(start(base, ["q_proj"], r=8, alpha=8)(input_ids=IDS).logits, theirs(input_ids=IDS).logits)
    r, alpha = (4, 8) if name == "r" else (8, 4)
    with pytest.raises(Refused, match=rf"{name} is 8 by default, but .*give lora\.{name.removeprefix('lora_')}: 8"):
        start(base, ["q_proj"], r=r, alpha=alpha)


def test_an_adapter_with_other_embeddings_than_its_base_is_refused(base: Path) -> None:
    """PEFT saves the embeddings beside adapters of them; trained or resized ones belong into the base."""
    adapted(base, AutoModelForCausalLM, ["embed_tokens"], True, task_type="CAUSAL_LM")
    file = base.parent / "adapter" / WEIGHTS
    tensors = load_file(file)
    name = next(name for name in tensors if "base_layer" in name)
    save_file({**tensors, name: tensors[name] + 1}, file)
    with pytest.raises(Refused, match=r"holds model\.embed_tokens\.weight with other values than model\.source"):
        start(base, ["embed_tokens"])


@pytest.mark.parametrize(
    ("targets", "rename", "why"),
    [
        (["q_proj"], ("", ""), r"adapts a layer that lora\.targets leaves out; .* own are \['v_proj'\]"),
        (
            ["v_proj"],
            ("layers.1", "layers.7"),
            "has no place in the model: the adapter was made for another model.source",
        ),
    ],
)
def test_what_has_no_place_is_refused_for_the_true_reason(
    targets: list[str], rename: tuple[str, str], why: str, base: Path
) -> None:
    """Only a layer that the model has and that is not adapted is a matter of targets."""
    adapted(base, AutoModelForCausalLM, ["v_proj"], task_type="CAUSAL_LM")
    file = base.parent / "adapter" / WEIGHTS
    save_file({name.replace(*rename): tensor for name, tensor in load_file(file).items()}, file)
    with pytest.raises(Refused, match=why):
        start(base, targets)


@pytest.mark.parametrize("gone", ["layers.1.self_attn.q_proj.lora_B", "score"])
def test_an_adapter_that_lacks_a_part_is_refused(gone: str, base: Path) -> None:
    """Bug: what was left of an adapter was trained on, beside new matrices or a new head, without a word."""
    adapted(base, AutoModelForSequenceClassification, ["q_proj"], task_type="SEQ_CLS")
    file = base.parent / "adapter" / WEIGHTS
    save_file({name: tensor for name, tensor in load_file(file).items() if gone not in name}, file)
    with pytest.raises(Refused, match=rf"holds nothing for \S*{gone}\S* \(1 tensor.*save the adapter again"):
        start(base, ["q_proj"], TEXT)


@pytest.mark.parametrize("number", [float("nan"), float("-inf")])
def test_an_adapter_that_holds_no_numbers_is_refused_by_name(number: float, base: Path) -> None:
    """Bug: of an adapter of NaN alone, every loss was NaN; one such number is enough, and its tensor is named."""
    adapted(base, AutoModelForCausalLM, ["q_proj"])
    file = base.parent / "adapter" / WEIGHTS
    tensors = load_file(file)
    name = "base_model.model.model.layers.1.self_attn.q_proj.lora_A.weight"
    tensors[name][0, 3] = number
    save_file(tensors, file)
    with pytest.raises(Refused, match=rf"{name} holds NaN or infinity.* as lora\.start"):
        start(base, ["q_proj"])
