"""A tokenizer.json that transformers does not read as it is."""

import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from fleetune.contracts.input_spec import InputSpec
from fleetune.contracts.run_config import DataRequest
from fleetune.data.job import Job, Preparation
from fleetune.data.tables import DataSource, InMemoryTable
from fleetune.data.tokenizer_file import other_split
from tests.support.data.samples import json_lines, prepared

TEXTS = [{"text": f"add 2023 {word}"} for word in "abcdefgh"]
CHATS = [
    {"messages": [{"role": "user", "content": row["text"]}, {"role": "assistant", "content": "2024"}]} for row in TEXTS
]


def folder_with(kind: str, at: Path) -> Path:
    """A folder whose file splits numbers by three digits, as DeepSeek's distilled Qwens do."""
    core = Tokenizer(models.BPE())
    digits = pre_tokenizers.Split(Regex(r"\p{N}{1,3}"), "isolated")
    core.pre_tokenizer = pre_tokenizers.Sequence([digits, pre_tokenizers.ByteLevel(add_prefix_space=False)])
    core.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=400, special_tokens=["<pad>", "</s>"], initial_alphabet=alphabet)
    core.train_from_iterator(["add 2023 and 2024"] * 9, trainer)
    core.enable_truncation(2)  # a setting of its last use, by which no split goes
    at.mkdir()
    core.save(str(at / "tokenizer.json"))
    (at / "config.json").write_text(json.dumps({"model_type": kind}))
    words = {"tokenizer_class": "LlamaTokenizerFast", "pad_token": "<pad>", "eos_token": "</s>"}
    chat = "{% for m in messages %}{{ m.content }}</s>{% endfor %}"
    (at / "tokenizer_config.json").write_text(json.dumps({**words, "chat_template": chat}))
    return at


@pytest.mark.parametrize("kind", ["qwen2", "llama"])
@pytest.mark.parametrize("rows", [TEXTS, CHATS], ids=["texts", "chats"])
def test_two_splits_of_a_text_are_told(kind: str, rows: list[dict[str, Any]], tmp_path: Path) -> None:
    """Bug: of a qwen2, transformers splits digits one by one whatever the file says, and other programs read the
    file: the model was trained by one and used by the other without a word. Where both agree, nothing is told."""
    spec = InputSpec(task="causal-lm", tokenizer=folder_with(kind, tmp_path / "m"), pretrained=True)
    data = prepared(tmp_path / "d", json_lines(tmp_path / "r.jsonl", rows), spec)
    told = [note for note in data.info.notes if "tokenizer.json" in note]
    assert bool(told) == (kind == "qwen2")
    parts = ("'2023 a", " is ['202', '3'", "['2', '0', '2', '3'", "by Qwen2Tokenizer of transformers") if told else ()
    assert not [part for part in parts if part not in told[0]], told


@pytest.mark.parametrize("streaming", [False, True])
def test_a_stream_is_not_read_for_it(streaming: bool, tmp_path: Path) -> None:
    """Bug: the first texts of a stream were read once more, and with them the 10,000 rows of their shuffle."""
    spec = InputSpec(task="causal-lm", tokenizer=folder_with("qwen2", tmp_path / "m"), pretrained=True)
    request = DataRequest(source="owner/set", streaming=streaming, train_samples=6, test_samples=2)
    asked = Preparation(request=request, spec=spec, seed=0)
    source = DataSource(train=(InMemoryTable(name="set", values=tuple(TEXTS)),))
    assert len([*other_split(Job(asked=asked, source=source, folder=tmp_path))]) == (0 if streaming else 1)
