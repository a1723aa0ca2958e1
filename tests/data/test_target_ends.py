"""Targets of pairs begin and end alike, whatever marks their tokenizer puts around a text by itself."""

from pathlib import Path

import numpy as np
import pytest
from tokenizers.processors import TemplateProcessing

from fleetune.contracts.input_spec import IGNORE_INDEX, InputSpec
from fleetune.data.prepared_data import PreparedData
from fleetune.data.tokenization import open_tokenizer
from tests.support.data.samples import CAUSAL, json_lines, prepared

PAD, BEGIN, END = 0, 1, 2
"""Tokens of the byte tokenizer."""
TEMPLATES = {"as Gemma's": "<bos> $A", "as GPT-2's": "$A", "as T5's": "$A <eos>", "as BERT's": "<bos> $A <eos>"}


def marking(folder: Path, template: str, start: int = BEGIN) -> InputSpec:
    """A model's requirements, with a tokenizer of bytes that puts these marks around each text."""
    tokenizer = open_tokenizer(CAUSAL)
    marks = [("<bos>", BEGIN), ("<eos>", END)]
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(single=template, special_tokens=marks)
    tokenizer.save_pretrained(folder)
    return InputSpec(task="seq2seq", tokenizer=folder, vocab_size=264, decoder_start_token_id=start)


def read_and_learned(data: PreparedData) -> tuple[list[int], list[int]]:
    """What the decoder reads of the first row, and what it learns."""
    rows = data.rows("train", [0])
    learned = rows["labels"][0] != IGNORE_INDEX
    return rows["decoder_input_ids"][0][learned].tolist(), rows["labels"][0][learned].tolist()


@pytest.mark.parametrize("marks", TEMPLATES)
def test_a_target_begins_once_and_ends(marks: str, tmp_path: Path) -> None:
    """Bug: with a tokenizer that puts no end token, the decoder never learned to stop; one that begins with the start
    token had it twice."""
    rows = json_lines(tmp_path / "r.jsonl", [{"text": f"say {n}", "target": "said"} for n in range(4)])
    data = prepared(tmp_path / "d", rows, marking(tmp_path / "t", TEMPLATES[marks]), max_length=8)
    read, learned = read_and_learned(data)
    assert learned[-1] == END and len(learned) == len("said") + 1 and not {BEGIN, PAD} & set(learned)
    assert read == [BEGIN, *learned[:-1]]


@pytest.mark.parametrize("marks", ["as Gemma's", "as GPT-2's"])
def test_a_target_that_is_cut_does_not_end(marks: str, tmp_path: Path) -> None:
    """A target that is cut, or fills all its tokens, has no end token, and only the first of them is told as cut."""
    for target, told in (("abcdef", True), ("abcd", False)):
        rows = json_lines(tmp_path / "r.jsonl", [{"text": f"say {n}", "target": target} for n in range(4)])
        spec = marking(tmp_path / f"t{target}", TEMPLATES[marks])
        data = prepared(tmp_path / target, rows, spec, max_length=8, target_length=4)
        assert len(read_and_learned(data)[1]) == 4 and END not in read_and_learned(data)[1]
        assert any("longer than target_length 4" in note for note in data.info.notes) == told


def test_another_start_token_leaves_the_first_token_to_be_learned(tmp_path: Path) -> None:
    """A decoder that starts with another token than its targets begin with, as BART's, learns the latter."""
    rows = json_lines(tmp_path / "r.jsonl", [{"text": f"say {n}", "target": "said"} for n in range(4)])
    read, learned = read_and_learned(prepared(tmp_path / "d", rows, marking(tmp_path / "t", "<bos> $A <eos>", END)))
    assert read[:2] == [END, BEGIN] and learned[0] == BEGIN and learned[-1] == END


def test_targets_of_a_tokenizer_without_an_end_token_are_told(tmp_path: Path) -> None:
    """Where nothing can end a target, a note says that the model does not learn to stop."""
    spec = marking(tmp_path / "t", "$A")
    tokenizer = open_tokenizer(spec)
    tokenizer.eos_token = None
    tokenizer.save_pretrained(tmp_path / "t")
    rows = json_lines(tmp_path / "r.jsonl", [{"text": f"say {n}", "target": "said"} for n in range(4)])
    data = prepared(tmp_path / "d", rows, spec)
    assert np.sum(data.rows("train", [0])["labels"] != IGNORE_INDEX) == len("said")
    assert any("does not learn to stop; give it an eos_token" in note for note in data.info.notes)
