"""The exported folder is the base's in all that training did not change: its tokenizer, its settings, no code."""

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from fleetune.contracts.run_config import DataRequest, Lora, ModelRequest
from fleetune.data.answer_ends import folder_ends
from fleetune.data.prepared_data import PreparedData
from fleetune.evaluation.trained_model import write_merged
from fleetune.models.export import copy_tokenizer, export_model
from fleetune.models.init_weights import INIT_WEIGHTS
from fleetune.models.skeleton import saved_configuration
from fleetune.models.source import configuration
from tests.support.data.chat_samples import CHATML, chat_tokenizer
from tests.support.data.samples import FRUITS, json_lines
from tests.support.preparation.instances import PreparedFolders, prepared_below
from tests.support.training.model_families import ENCODER

LLAMA = {"model_type": "llama", "num_key_value_heads": 1, "eos_token_id": 2, "bos_token_id": 1, **ENCODER}
CODE = {
    "auto_map": {"AutoModelForCausalLM": "evil--code.Model", "AutoTokenizer": ["evil.Tokenizer", None]},
    "custom_pipelines": {"evil": {"impl": "evil.Pipeline", "pt": ["AutoModelForCausalLM"]}},
    "trust_remote_code": True,
}
LORA = Lora(r=2, targets=("q_proj",))


def change(file: Path, **settings: Any) -> None:
    """Set keys of a JSON file; None deletes one."""
    plain = {**json.loads(file.read_text()), **settings}
    file.write_text(json.dumps({key: value for key, value in plain.items() if value is not None}))


def base(folder: Path) -> Path:
    """A Llama that pads and cuts on the left, with files that transformers itself would not write today."""
    torch.manual_seed(5)
    plain = configuration(ModelRequest(task="causal-lm", config=LLAMA))
    AutoModelForCausalLM.from_config(plain).save_pretrained(folder)
    chat_tokenizer(folder)
    change(folder / "config.json", **CODE)
    change(folder / "generation_config.json", top_k=5, **CODE)
    sides = {"padding_side": "left", "truncation_side": "left", "model_max_length": 10**30, "name_or_path": "/theirs"}
    change(folder / "tokenizer_config.json", **sides, **CODE)
    (folder / "processor_config.json").write_text(json.dumps({"processor_class": "SomeProcessor", **CODE}))
    specials = {"bos_token": "<bos>", "eos_token": "<eos>", "pad_token": "<pad>", "unk_token": "<unk>"}
    (folder / "special_tokens_map.json").write_text(json.dumps(specials))
    return folder


def exported(folder: Path, request: ModelRequest, data: DataRequest) -> Path:
    """Prepare, and write the folder that the end of training writes."""
    _, folders = prepared_below(folder, request, data)
    saved, prepared = saved_configuration(folders.model / "model"), PreparedData(folders.data)
    written = export_model(saved, request, folders.model / INIT_WEIGHTS, {}, folder / "out")
    assert prepared.processing is not None
    copy_tokenizer(prepared.processing, written, partial(folder_ends, note=print))
    return written


def rows(folder: Path, **more: Any) -> DataRequest:
    """Short texts."""
    return DataRequest(source=str(json_lines(folder / "rows.jsonl", FRUITS)), max_length=24, **more)


def plain(file: Path) -> Any:
    """A file of JSON."""
    return json.loads(file.read_text())


@pytest.mark.parametrize("task", ["causal-lm", "sequence-classification"])
@pytest.mark.parametrize("lora", [None, LORA], ids=["whole", "adapter"])
def test_the_tokenizer_is_the_bases(task: str, lora: Lora | None, tmp_path: Path) -> None:
    """Sides of padding and truncation, chat template, special tokens, and files of older versions are those of the
    base's folder, whatever side training itself pads on; batches of a decoder are wrong with padding on the right."""
    source = base(tmp_path / "base")
    folder = exported(tmp_path, ModelRequest(task=task, source=str(source), lora=lora), rows(tmp_path))
    for name in ("tokenizer.json", "special_tokens_map.json", "chat_template.jinja"):
        assert (folder / name).read_bytes() == (source / name).read_bytes(), name
    wanted = plain(source / "tokenizer_config.json")
    del wanted["name_or_path"]
    assert plain(folder / "tokenizer_config.json") == {key: wanted[key] for key in wanted.keys() - CODE}
    tokenizer, own = (AutoTokenizer.from_pretrained(place) for place in (folder, source))
    assert (tokenizer.padding_side, tokenizer.truncation_side) == ("left", "left")
    texts = ["a pear", "a much longer text about pears"]
    given = {"padding": "max_length", "truncation": True, "max_length": 12}
    assert tokenizer(texts, **given)["input_ids"] == own(texts, **given)["input_ids"]
    assert tokenizer.chat_template == CHATML


@pytest.mark.filterwarnings("ignore::FutureWarning")  # PEFT asks transformers by an older name
@pytest.mark.parametrize("written", ["whole", "adapter", "merged"])
def test_no_settings_name_code(written: str, tmp_path: Path) -> None:
    """Whoever loads the folder with trust_remote_code would run files of the base's author that are not in it; all
    else of the settings for generation and for what the model reads beside texts stays."""
    source = base(tmp_path / "base")
    request = ModelRequest(task="causal-lm", source=str(source), lora=None if written == "whole" else LORA)
    folder = exported(tmp_path, request, rows(tmp_path))
    if written == "merged":
        start, folder = PreparedFolders.below(tmp_path).model, tmp_path / "merged"
        write_merged(tmp_path / "out", start, request, folder, pytest.fail)
    texts = {path.name: path.read_text() for path in folder.rglob("*.json")}
    assert not [(name, key) for name, text in texts.items() for key in CODE if f'"{key}"' in text]
    if written != "adapter":
        assert plain(folder / "processor_config.json") == {"processor_class": "SomeProcessor"}
        wanted = {key: value for key, value in plain(source / "generation_config.json").items() if key not in CODE}
        end = AutoTokenizer.from_pretrained(folder).convert_tokens_to_ids("<|im_end|>")
        wanted["eos_token_id"] = [wanted["eos_token_id"], end]  # by which its chat template ends an answer
        assert plain(folder / "generation_config.json") == wanted


def test_a_chat_template_that_was_asked_for_goes_along(tmp_path: Path) -> None:
    """It is what training changed, and no other place of the folder has the base's."""
    source, asked = base(tmp_path / "base"), "{{ messages[0].content }}!"
    (source / "chat_template.jinja").unlink()
    change(source / "tokenizer_config.json", chat_template=CHATML)
    (tmp_path / "asked.jinja").write_text(asked)
    data = rows(tmp_path, chat_template=str(tmp_path / "asked.jinja"))
    folder = exported(tmp_path, ModelRequest(task="causal-lm", source=str(source)), data)
    assert AutoTokenizer.from_pretrained(folder).chat_template == asked
    assert "chat_template" not in plain(folder / "tokenizer_config.json")


@pytest.mark.parametrize("task, pad", [("causal-lm", None), ("sequence-classification", "<eos>")])
def test_a_padding_token_is_added_where_the_model_has_one(task: str, pad: str | None, tmp_path: Path) -> None:
    """A classifier's configuration names the token that training padded with; a language model's does not."""
    source = base(tmp_path / "base")
    (source / "special_tokens_map.json").unlink()
    change(source / "tokenizer_config.json", pad_token=None)
    folder = exported(tmp_path, ModelRequest(task=task, source=str(source)), rows(tmp_path))
    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert tokenizer.pad_token == pad
    if pad is not None:
        assert plain(folder / "config.json")["pad_token_id"] == tokenizer.pad_token_id
