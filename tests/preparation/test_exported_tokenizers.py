"""What was trained of the hub's files opens with its base's tokenizer, and is asked with the tokens of training."""

import json
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer
from transformers import AutoModel, AutoModelForCausalLM, AutoModelForSeq2SeqLM

from fleetune.contracts.run_config import DataRequest, Lora, ModelRequest
from fleetune.contracts.tasks import SEQ2SEQ
from fleetune.data.answer_ends import folder_ends
from fleetune.data.prepared_data import PreparedData
from fleetune.data.unlabelled import asked_texts
from fleetune.evaluation.prediction import Predictor
from fleetune.evaluation.trained_model import load_result, write_merged
from fleetune.models.export import copy_tokenizer, export_model
from fleetune.models.init_weights import INIT_WEIGHTS
from fleetune.models.skeleton import saved_configuration
from fleetune.models.source import configuration
from tests.support.data.hub_tokenizers import TEXTS, hub_tokenizer, opened
from tests.support.data.samples import json_lines
from tests.support.preparation.instances import PreparedFolders, prepared_once
from tests.support.training.model_families import ENCODER

CLASSES, LANGUAGE = "sequence-classification", "causal-lm"
SIZES = {**ENCODER, "vocab_size": 400}
OLD_SIZES = {"vocab_size": 400, "n_embd": 32, "n_layer": 2, "n_head": 2}
MODELS: dict[str, tuple[str, dict[str, Any], str]] = {
    "bert": (CLASSES, SIZES, "query"),
    "distilbert": (CLASSES, {"vocab_size": 400, "dim": 32, "hidden_dim": 64, "n_layers": 2, "n_heads": 2}, "q_lin"),
    "roberta": (CLASSES, SIZES, "query"),
    "gpt2": (LANGUAGE, OLD_SIZES, "c_attn"),
    "gpt_bigcode": (LANGUAGE, OLD_SIZES, "c_proj"),
    "granite": (LANGUAGE, {**SIZES, "num_key_value_heads": 1}, "q_proj"),
    "mistral": (LANGUAGE, {**SIZES, "num_key_value_heads": 1}, "q_proj"),
    "bart": (
        SEQ2SEQ,
        {"vocab_size": 400, "d_model": 32, "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 2,
         "decoder_attention_heads": 2, "encoder_ffn_dim": 32, "decoder_ffn_dim": 32},
        "q_proj",
    ),
}  # fmt: skip
"""Type -> task, sizes, and a layer that gets an adapter."""
LOADERS = {CLASSES: AutoModel, LANGUAGE: AutoModelForCausalLM, SEQ2SEQ: AutoModelForSeq2SeqLM}


def trained(folder: Path, kind: str, written: str, task: str | None = None) -> tuple[Path, ModelRequest]:
    """Prepare, and write the folder that the end of training writes, or a merge of it; what was asked."""
    own, sizes, target = MODELS[kind]
    base, lora = folder / "base", None if written == "whole" else Lora(r=2, targets=(target,))
    torch.manual_seed(3)
    plain = configuration(ModelRequest(task=own, config={"model_type": kind, **sizes}))
    LOADERS[own].from_config(plain).save_pretrained(base)
    hub_tokenizer(base, kind, padding_side="left")
    rows = [{"text": text, "label": "ab"[n % 2], "target": text[-8:]} for n, text in enumerate(TEXTS)]
    data = DataRequest(source=str(json_lines(folder / "rows.jsonl", rows)), max_length=32)
    request = ModelRequest(task=task or own, source=str(base), lora=lora)
    _, folders = prepared_once(folder, request, data)
    prepared, saved = PreparedData(folders.data), saved_configuration(folders.model / "model")
    made = export_model(saved, request, folders.model / INIT_WEIGHTS, {}, folder / "out")
    assert prepared.tokenizer is not None
    copy_tokenizer(prepared.tokenizer, made, partial(folder_ends, note=pytest.fail))
    if written != "merged":
        return made, request
    write_merged(folder / "out", folders.model, request, folder / "merged", pytest.fail)
    return folder / "merged", request


@pytest.mark.filterwarnings("ignore::FutureWarning")  # PEFT asks transformers by an older name
@pytest.mark.parametrize(
    ("kind", "written"),
    [
        *((kind, "adapter") for kind in MODELS),
        *((kind, "merged") for kind in ("distilbert", "gpt2", "mistral")),
        *((kind, "whole") for kind in ("roberta", "gpt2", "granite")),
    ],
)
def test_an_exported_folder_opens_as_its_base(kind: str, written: str, tmp_path: Path) -> None:
    """Bug: the adapter of a language model has no config.json, by whose type transformers finds the tokenizer's class
    where the settings name none, or another: a GPT-2's had no end token, and a Granite's split numbers otherwise. The
    settings of the base are there as they were."""
    folder, _ = trained(tmp_path, kind, written)
    assert opened(folder) == opened(tmp_path / "base")
    settings, own = (json.loads((each / "tokenizer_config.json").read_text()) for each in (folder, tmp_path / "base"))
    own.pop("tokenizer_class", None)
    assert settings.items() >= own.items()
    if kind == "mistral":  # named otherwise than in its base's settings, of a class that had token types before
        assert settings["model_input_names"] == ["input_ids", "attention_mask"]


def predictor(folder: Path, kind: str, task: str) -> Predictor:
    """What asks the trained model."""
    _, request = trained(folder, kind, "whole", task)
    folders = PreparedFolders.below(folder)
    model: Any = load_result(folder / "out", folders.model, request, pytest.fail)
    return Predictor(model=model.eval(), data=PreparedData(folders.data), new_tokens=3)


@pytest.mark.parametrize("kind", ["distilbert", "roberta", "gpt2", "gpt_bigcode", "mistral"])
def test_a_classifier_is_asked_with_the_tokens_of_training(kind: str, tmp_path: Path) -> None:
    """Bug: `predict` said of a BERT as the hub has it that its tokenizer has no token to pad with, and asked a
    StarCoder with other tokens than those of training. Each text gets what the model gives its prepared row."""
    asking = predictor(tmp_path, kind, CLASSES)
    found = sorted(one.probabilities["a"] for one in asking.predictions(asked_texts(TEXTS, chats=False)))
    splits = [asking.data.rows(split, np.arange(asking.data.size(split))) for split in ("train", "test")]
    names = ("input_ids", "attention_mask")
    rows = {name: torch.cat([torch.as_tensor(split[name]).long() for split in splits]) for name in names}
    with torch.no_grad():
        wanted = asking.model(**rows).logits.double().softmax(-1)[:, asking.data.labels.index("a")]
    assert found == pytest.approx(sorted(wanted.tolist()), abs=1e-6)


@pytest.mark.parametrize("kind", ["gpt2", "bart"])
def test_a_model_that_writes_is_asked(kind: str, tmp_path: Path) -> None:
    """Bug: a GPT-2 as the hub has it had no end token when it was asked, and so none to pad with: `predict` refused."""
    asking = predictor(tmp_path, kind, MODELS[kind][0])
    assert [one.input for one in asking.predictions(asked_texts(["the Quick"], chats=False))] == ["the Quick"]


def test_the_text_part_of_a_model_keeps_the_class(tmp_path: Path) -> None:
    """Of a Llava, transformers reads the file as it is; of its Llama by itself, it would take the class that the
    settings name, which splits texts otherwise."""
    source, part = hub_tokenizer(tmp_path / "whole", "llava"), tmp_path / "part"
    part.mkdir()
    (part / "config.json").write_text(json.dumps({"model_type": "llama"}))
    copy_tokenizer(source, part, partial(folder_ends, note=pytest.fail))
    assert opened(part) == opened(source)


@pytest.mark.parametrize("settings", [{"model_type": "mistral", "transformers_version": "5.23.0"}, None])
def test_a_mistral_keeps_its_mended_split(settings: dict[str, Any] | None, tmp_path: Path) -> None:
    """Bug: of a large Mistral whose settings have fix_mistral_regex, transformers mends the split if transformers 4
    wrote the model; the exported folder, which 5 writes, and an adapter split numbers and words as before the mend."""
    source, folder = hub_tokenizer(tmp_path / "base", "granite"), tmp_path / "out"
    (source / "config.json").write_text('{"model_type": "mistral", "transformers_version": "4.57.3"}')
    mended = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|endoftext|>", "fix_mistral_regex": True}
    (source / "tokenizer_config.json").write_text(json.dumps(mended))
    file = json.loads((source / "tokenizer.json").read_text())
    file["model"]["vocab"] |= {f"word {number}": 1000 + number for number in range(100_000)}
    file["pre_tokenizer"]["pretokenizers"][0] = {"type": "Whitespace"}
    (source / "tokenizer.json").write_text(json.dumps(file))
    folder.mkdir()
    if settings is not None:
        (folder / "config.json").write_text(json.dumps(settings))
    copy_tokenizer(source, folder, partial(folder_ends, note=pytest.fail))
    assert opened(folder) == opened(source)
    assert opened(folder)["tokens"] != Tokenizer.from_file(str(source / "tokenizer.json")).encode("A Fox 123").tokens
