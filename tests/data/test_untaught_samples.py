"""Samples of texts that hold no token to learn are left out and told; a training has some that do."""

from pathlib import Path

import numpy as np
import pytest

from fleetune.contracts.input_spec import IGNORE_INDEX, InputSpec
from fleetune.contracts.run_config import DataRequest
from fleetune.data.sources import validate_data
from fleetune.data.tokenization import open_tokenizer
from fleetune.errors import Refused
from tests.support.data.samples import CAUSAL, TEXT, json_lines, prepared, texts, whole


@pytest.fixture
def endless(tmp_path: Path) -> InputSpec:
    """Requirements of a model whose tokenizer of bytes puts nothing around a text and has no end token."""
    from tokenizers.processors import TemplateProcessing

    tokenizer = open_tokenizer(CAUSAL)
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(single="$A", special_tokens=[])
    tokenizer.eos_token = None
    tokenizer.save_pretrained(tmp_path / "t")
    return InputSpec(task="causal-lm", tokenizer=tmp_path / "t", vocab_size=264)


def test_texts_of_one_token_are_left_out(endless: InputSpec, tmp_path: Path) -> None:
    """Bug: texts of one token, of which nothing is learned, were trained on without a word."""
    source = json_lines(tmp_path / "r.jsonl", [{"text": "a" if n % 4 else f"text {n}"} for n in range(20)])
    held_out = json_lines(tmp_path / "v.jsonl", [{"text": "b"}, {"text": "longer text"}])
    data = prepared(tmp_path / "d", source, endless, validation=str(held_out))
    assert {f"{lost} samples are left out: no token to learn" for lost in ("15 of 20 train", "1 of 2 test")} <= {
        *data.info.notes
    }
    assert sorted(texts(data, "train")) == sorted(f"text {n}" for n in range(0, 20, 4))
    assert texts(data, "test") == ["longer text"]
    for split in ("train", "test"):
        assert np.all((whole(data, split)["labels"][:, 1:] != IGNORE_INDEX).any(axis=1))


def test_one_of_those_that_are_only_tested_may_come_first(endless: InputSpec, tmp_path: Path) -> None:
    """Its row is not the one that stands for what is trained on, which would be refused."""
    source = json_lines(tmp_path / "r.jsonl", [{"text": "a" if n < 19 else f"text {n}"} for n in range(20)])
    data = prepared(tmp_path / "d", source, endless, validation=1.0)
    assert texts(data, "test") == ["text 19"]


def test_many_samples_are_copied_in_their_order(
    endless: InputSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is left is copied chunk by chunk, all of it, in the order in which it was written."""
    rows = [{"text": f"text {n}"} for n in range(20)]
    held = json_lines(tmp_path / "v.jsonl", rows[:3])
    whole_set = prepared(tmp_path / "d", json_lines(tmp_path / "r.jsonl", rows), endless, validation=str(held))
    monkeypatch.setattr("fleetune.data.writer.CHUNK_SAMPLES", 4)
    some = [row if n % 2 else {"text": "a"} for n, row in enumerate(rows)]
    left = prepared(tmp_path / "e", json_lines(tmp_path / "s.jsonl", some), endless, validation=str(held))
    taught = {row["text"] for row in some}
    assert texts(left, "train") == [text for text in texts(whole_set, "train") if text in taught]


def test_what_is_left_out_is_in_no_split(endless: InputSpec, tmp_path: Path) -> None:
    """Bug: a test row that was left out, and equalled a training row, hid that another one was made equal by a cut."""
    long = "a text that is longer than 24 tokens, "
    source = json_lines(tmp_path / "r.jsonl", [{"text": "a"}, {"text": f"{long}one"}, {"text": "other text"}])
    held_out = json_lines(tmp_path / "v.jsonl", [{"text": "a"}, {"text": f"{long}two"}, {"text": "new text"}])
    notes = prepared(tmp_path / "d", source, endless, validation=str(held_out)).info.notes
    assert any(
        note.startswith("1 of 2 test rows are also") and "; these rows differ in the source" in note for note in notes
    )


def test_a_training_without_a_token_to_learn_is_refused(endless: InputSpec, tmp_path: Path) -> None:
    """Bug: a run in which nothing was learned at all ended well."""
    source = json_lines(tmp_path / "r.jsonl", [{"text": chr(97 + n)} for n in range(20)])
    held_out = json_lines(tmp_path / "v.jsonl", [{"text": "longer text"}] * 3)
    with pytest.raises(Refused, match=r"no train sample has a token to learn.*; give longer texts, or .* an eos_token"):
        prepared(tmp_path / "d", source, endless, validation=str(held_out))
    assert not (tmp_path / "d").exists()


@pytest.mark.parametrize(("packing", "empty"), [(False, " \n"), (True, " \n"), (False, None)])
def test_empty_texts_are_left_out(packing: bool, empty: str | None, tmp_path: Path) -> None:
    """Bug: one empty line, as every article of wikitext begins with, ended a training of a language model, and so did
    null, by which Parquet files have it."""
    rows = [{"text": f"text {n}" if n % 4 else empty} for n in range(20)]
    held_out = json_lines(tmp_path / "v.jsonl", [{"text": ""}, {"text": "longer text"}])
    source = json_lines(tmp_path / "r.jsonl", rows)
    validate_data(DataRequest(source=str(source), max_length=24), "causal-lm")
    data = prepared(tmp_path / "d", source, CAUSAL, validation=str(held_out), packing=packing)
    assert data.info.notes == ("6 of 22 rows are left out: their text is empty",)
    if not packing:
        assert sorted(texts(data, "train")) == sorted(f"text {n}" for n in range(20) if n % 4)
        assert texts(data, "test") == ["longer text"]
    with pytest.raises(Refused, match=r"e\.jsonl: no samples in it"):
        validate_data(DataRequest(source=str(json_lines(tmp_path / "e.jsonl", [{"text": ""}]))), "causal-lm")


def test_empty_texts_are_counted_once(tmp_path: Path) -> None:
    """Of data that are only tested on, too, whose rows stand for both splits. Null beside messages is no empty text."""
    source = json_lines(tmp_path / "r.jsonl", [{"text": f"text {n}" if n % 4 else ""} for n in range(20)])
    data = prepared(tmp_path / "d", source, CAUSAL, validation=1.0)
    assert "5 of 20 rows are left out: their text is empty" in data.info.notes
    both = [{"text": "a"}, {"text": None, "messages": [{"role": "user", "content": "b"}]}]
    with pytest.raises(Refused, match=r"s\.jsonl: line 2 has nothing in column 'text'; fill it"):
        prepared(tmp_path / "e", json_lines(tmp_path / "s.jsonl", both), CAUSAL)


def test_a_row_that_lacks_its_text_is_refused(tmp_path: Path) -> None:
    """A row without the column, under which its text may have another name, is a mistake."""
    with pytest.raises(Refused, match=r"s\.jsonl: line 2 has nothing in column 'text'; fill it"):
        prepared(tmp_path / "e", json_lines(tmp_path / "s.jsonl", [{"text": "a"}, {"txt": "b"}]), CAUSAL)


def test_rows_without_a_text_are_left_out_of_classes(tmp_path: Path) -> None:
    """Bug: one empty text refused a whole set; of language models it was left out and told. Columns of a CSV without a
    name, as spreadsheets leave them behind, were two columns of one name."""
    rows = [
        "ham,the first,,,",
        "spam,,,,",
        *(f"{('ham', 'spam')[n % 2]},text {n},,{'more' * (n == 3)}," for n in range(12)),
    ]
    (tmp_path / "spam.csv").write_text("v1,v2,,,\n" + "\n".join(rows) + "\n")
    data = prepared(tmp_path / "d", tmp_path / "spam.csv", TEXT, text_column="v2", label_column="v1")
    assert data.size("train") + data.size("test") == 13
    assert data.labels == ("ham", "spam")
    assert "1 of 14 rows are left out: their text is empty" in data.info.notes
    assert "rows have columns that are not read: Unnamed: 3" in data.info.notes
    (tmp_path / "saved.csv").write_text(",Unnamed: 0.1,Unnamed: 0,text,label\n0,0,0,a,ham\n1,1,1,b,spam\n2,2,2,c,ham\n")
    twice = prepared(tmp_path / "s", tmp_path / "saved.csv", TEXT)  # by pandas, each time with its index: a bug, too
    assert twice.size("train") + twice.size("test") == 3
    (tmp_path / "twice.csv").write_text("v1,v2,,,\nham,a text,,,\nv1,v2,,,\n")
    with pytest.raises(Refused, match="line 3 holds the names of columns"):
        prepared(tmp_path / "e", tmp_path / "twice.csv", TEXT, text_column="v2", label_column="v1")
