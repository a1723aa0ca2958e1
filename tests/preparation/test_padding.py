"""Classifiers that read the last token of a text find it, whatever pads the data."""

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification

from fleetune.contracts.run_config import DataRequest, Lora, ModelRequest
from fleetune.data.prepared_data import PreparedData
from fleetune.data.tokenization import open_tokenizer
from fleetune.models.export import export_model
from fleetune.models.init_weights import INIT_WEIGHTS, initial_model
from fleetune.models.skeleton import saved_configuration
from fleetune.models.source import configuration
from tests.support.data.samples import FRUITS, TEXT, json_lines
from tests.support.preparation.instances import prepared_below
from tests.support.training.model_families import ENCODER

LLAMA = {"model_type": "llama", "num_key_value_heads": 1, **ENCODER}
GPT2 = {"model_type": "gpt2", "n_embd": 32, "n_layer": 1, "n_head": 2, "vocab_size": 300, "n_positions": 64}


def base(folder: Path, config: dict[str, Any], pad: int | None, padded: bool) -> ModelRequest:
    """A language model whose config pads with `pad`; its tokenizer has a token to pad with (number 0) or none."""
    plain = ModelRequest(task="causal-lm", config={**config, "pad_token_id": pad, "eos_token_id": 2, "bos_token_id": 1})
    torch.manual_seed(5)
    AutoModelForCausalLM.from_config(configuration(plain)).save_pretrained(folder)
    tokenizer = open_tokenizer(TEXT)
    if not padded:
        tokenizer.pad_token = None
    tokenizer.save_pretrained(folder)
    return ModelRequest(task="sequence-classification", source=str(folder))


def fruits(folder: Path) -> DataRequest:
    """Texts that are shorter than the rows."""
    return DataRequest(source=str(json_lines(folder / "rows.jsonl", FRUITS)), max_length=24)


def logits_of_rows(model: Any, data: PreparedData, trimmed: bool) -> torch.Tensor:
    """Logits of some rows, each by itself; trimmed: without its padding."""
    rows = data.rows("train", range(8))
    assert (rows["attention_mask"] == 0).any()
    found = []
    for ids, mask in zip(rows["input_ids"], rows["attention_mask"], strict=True):
        length = int(mask.sum()) if trimmed else len(ids)
        given = {"input_ids": ids[None, :length], "attention_mask": mask[None, :length]}
        found.append(model(**{name: torch.from_numpy(each) for name, each in given.items()}).logits)
    return torch.cat(found)


@pytest.mark.parametrize(
    "config, pad, padded, wanted",
    [(LLAMA, 0, False, 2), (LLAMA, 7, True, 0), (LLAMA, None, False, 2), (GPT2, 0, False, 2)],
    ids=["another id", "the tokenizer's is another", "none", "gpt2"],
)
def test_padding_changes_no_logits(
    config: dict[str, Any], pad: int | None, padded: bool, wanted: int, tmp_path: Path
) -> None:
    """Bug: data were padded with the tokenizer's end token, while a decoder's head looked for its configuration's, and
    so read the last position of the padding. Both have one token, in the exported folder too.
    """
    request = base(tmp_path / "model", config, pad, padded)
    _, folders = prepared_below(tmp_path, request, fruits(tmp_path))
    data, saved = PreparedData(folders.data), saved_configuration(folders.model / "model")
    assert data.info.pad_token_id == saved.pad_token_id == wanted
    start = folders.model / INIT_WEIGHTS
    folder = export_model(saved, request, start, {}, tmp_path / "exported")
    for model in (
        initial_model(saved, request, start),
        AutoModelForSequenceClassification.from_pretrained(folder).eval(),
    ):
        with torch.no_grad():
            whole, trimmed = (logits_of_rows(model, data, each) for each in (False, True))
        assert torch.allclose(whole, trimmed, rtol=1e-5, atol=1e-6)
        assert not torch.allclose(whole[0], whole[1])


@pytest.mark.filterwarnings("ignore::FutureWarning")  # PEFT asks transformers by an older name
def test_an_adapters_readme_loads_the_same_padding(tmp_path: Path) -> None:
    """The base's own configuration has another token to pad with, or none; the code of the README gives it."""
    plain = base(tmp_path / "model", LLAMA, 0, False)
    request = ModelRequest(task=plain.task, source=plain.source, lora=Lora(r=2, targets=("q_proj",)))
    _, folders = prepared_below(tmp_path, request, fruits(tmp_path))
    data, saved = PreparedData(folders.data), saved_configuration(folders.model / "model")
    folder = export_model(saved, request, folders.model / INIT_WEIGHTS, {}, tmp_path / "exported")
    code = (folder / "README.md").read_text().split("```python\n")[1].split("```")[0]
    found: dict[str, Any] = {}
    exec(code.replace('"adapter"', repr(str(folder))), found)
    with torch.no_grad():
        whole, trimmed = (logits_of_rows(found["model"].eval(), data, each) for each in (False, True))
    assert torch.allclose(whole, trimmed, rtol=1e-5, atol=1e-6)


def test_positions_that_are_counted_from_the_padding_stay() -> None:
    """RoBERTa's positions begin behind its token to pad with, so that another one would be another model."""
    request = ModelRequest(
        task="sequence-classification",
        config={"model_type": "roberta", "pad_token_id": 1, "max_position_embeddings": 66, **ENCODER},
    )
    assert configuration(request, ("no", "yes"), pad_token_id=0).pad_token_id == 1
