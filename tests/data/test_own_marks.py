"""Marks that a tokenizer puts around a text by itself, and that the text already has: each is there once."""

from pathlib import Path
from typing import Any

import pytest

from fleetune.contracts.input_spec import IGNORE_INDEX, InputSpec
from fleetune.data.chat_tokens import SequenceEncoder
from fleetune.data.dialogues import Completion
from fleetune.data.examples import Example
from fleetune.data.tokenization import document_ids, open_tokenizer
from fleetune.evaluation.prompts import prompt_ids
from tests.support.data.samples import CAUSAL, TEXT, json_lines, prepared, whole

BEGIN, END = 1, 2
"""Tokens of the byte tokenizer, which puts both around each text."""
PAIRS = InputSpec(task="seq2seq", vocab_size=264, max_positions=64, decoder_start_token_id=0)


def shown(text: str) -> Example:
    """A sample of a text."""
    return Example(location="row 1", content=text, label=None)


def encoded(content: Any) -> tuple[list[int], list[int]]:
    """Tokens, and those that carry loss."""
    sequence = SequenceEncoder(open_tokenizer(CAUSAL), CAUSAL, loss_on_all=False).encode(
        Example(location="row 1", content=content, label=None)
    )
    return sequence.ids.tolist(), sequence.labels[sequence.labels != IGNORE_INDEX].tolist()


@pytest.mark.parametrize("text", ["<bos>hi", "hi<eos>", "<bos>hi<eos>"])
def test_a_text_has_each_mark_once(text: str, tmp_path: Path) -> None:
    """Bug: a text that began with the first token got it twice, padded or packed, to be classified or gone on with."""
    wanted = encoded("hi")[0]
    assert encoded(text)[0] == wanted
    for spec, changes in ((TEXT, {}), (CAUSAL, {}), (CAUSAL, {"packing": True})):
        folder = tmp_path / f"{spec.task}{len(changes)}"
        rows = json_lines(
            tmp_path / "r.jsonl", [{"text": text.replace("hi", f"h{n}"), "label": "ab"[n % 2]} for n in range(4)]
        )
        for ids in whole(prepared(folder, rows, spec, test_samples=1, **changes), "train")["input_ids"].tolist():
            letters = sum(token > 3 for token in ids)
            assert ids.count(BEGIN) == ids.count(END) == letters / 2


@pytest.mark.parametrize(("prompt", "completion"), [("<bos>q", "a<eos>"), ("<bos>q", "a"), ("", "<bos>qa")])
def test_a_completion_has_each_mark_once(prompt: str, completion: str) -> None:
    """Bug: a completion that ended with the last token had it twice, and loss on both."""
    ids, learned = encoded(Completion(prompt, completion))
    assert ids == encoded("qa")[0]
    if prompt:
        assert learned == encoded(Completion("q", "a"))[1]
        assert prompt_ids(open_tokenizer(CAUSAL), shown(prompt)) == ids[:2]


def test_a_target_has_its_end_once(tmp_path: Path) -> None:
    """What a decoder writes ends once, too."""
    rows = [{"text": f"q{n}", "target": "a<eos>"} for n in range(4)]
    labels = whole(prepared(tmp_path / "d", json_lines(tmp_path / "r.jsonl", rows), PAIRS), "train")["labels"]
    assert all((row == END).sum() == 1 for row in labels)


def test_a_document_has_each_mark_once() -> None:
    """A document of a sequence begins and ends as its tokenizer begins and ends a text, whatever it has already."""
    tokenizer = open_tokenizer(CAUSAL)
    for text in ("hi", "<bos>hi", "hi<eos>"):
        assert document_ids(tokenizer, text).tolist() == tokenizer("hi")["input_ids"]


def test_marks_in_the_middle_stay() -> None:
    """A prompt may end with a token that ends texts; only what the tokenizer puts there is there already."""
    ids, _ = encoded(Completion("q<eos>", "a"))
    assert ids.count(END) == 2 and prompt_ids(open_tokenizer(CAUSAL), shown("q<eos>")) == ids[:3]
