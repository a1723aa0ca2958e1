"""Tokenizers of many languages: the two of a pair are named by the tokenizer's folder, never guessed."""

import json
from pathlib import Path

import pytest
from transformers import NllbTokenizer

from fleetune.contracts.input_spec import InputSpec
from fleetune.errors import Refused
from tests.support.data.samples import json_lines, prepared, whole

WORDS = ["<s>", "<pad>", "</s>", "<unk>", "\u2581", *"abcdefghij"]


def translating(folder: Path, **named: str | None) -> InputSpec:
    """A model's requirements, with a tokenizer of three languages whose folder names these."""
    codes = ["eng_Latn", "deu_Latn", "fra_Latn"]
    vocabulary = {word: number for number, word in enumerate(WORDS)}
    NllbTokenizer(vocab=vocabulary, merges=[], extra_special_tokens=codes).save_pretrained(folder)
    file = folder / "tokenizer_config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **named}))
    return InputSpec(task="seq2seq", tokenizer=folder, vocab_size=100, decoder_start_token_id=2)


@pytest.mark.parametrize("missing", ["src_lang", "tgt_lang"])
def test_languages_that_nobody_names_are_refused(missing: str, tmp_path: Path) -> None:
    """Bug: pairs were marked with the languages of the tokenizer's class, whatever they were in."""
    spec = translating(tmp_path / "t", **{"src_lang": "deu_Latn", "tgt_lang": "fra_Latn", missing: None})
    rows = json_lines(tmp_path / "r.jsonl", [{"text": f"a {x}", "target": "b"} for x in "abcd"])
    with pytest.raises(Refused, match=f"its tokenizer_config.json names no {missing}; name both there"):
        prepared(tmp_path / "d", rows, spec)
    assert not (tmp_path / "d").exists()


def test_languages_that_are_named_mark_the_texts(tmp_path: Path) -> None:
    """Each text has the language of its side."""
    spec = translating(tmp_path / "t", src_lang="deu_Latn", tgt_lang="fra_Latn")
    rows = json_lines(tmp_path / "r.jsonl", [{"text": f"a {x}", "target": "b"} for x in "abcd"])
    tokenizer = NllbTokenizer.from_pretrained(tmp_path / "t")
    batch = whole(prepared(tmp_path / "d", rows, spec), "train")
    german, french = tokenizer.convert_tokens_to_ids(["deu_Latn", "fra_Latn"])
    assert all(german in row for row in batch["input_ids"]) and all(french in row for row in batch["labels"])
