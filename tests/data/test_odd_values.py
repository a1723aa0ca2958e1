"""Values at the edges of what files can hold are read, or refused in a sentence with their place."""

import csv
import json
from pathlib import Path
from typing import Any

import pytest

from fleetune.contracts.input_spec import InputSpec
from fleetune.contracts.run_config import DataRequest
from fleetune.data.prepared_data import LABELS
from fleetune.data.unlabelled import asked_rows, asked_texts
from fleetune.errors import Refused
from tests.support.data.chat_samples import chat_spec
from tests.support.data.samples import CAUSAL, FRUITS, TEXT, json_lines, prepared, texts, whole

HALF = "a \ud83d"
NUMBERS = InputSpec(task="sequence-regression", vocab_size=264, max_positions=64)
SEVERAL = InputSpec(task="sequence-multi-label-classification", vocab_size=264, max_positions=64)
PAIRS = InputSpec(task="seq2seq", vocab_size=264, max_positions=64, decoder_start_token_id=0)


@pytest.mark.parametrize(
    ("row", "spec"),
    [
        ({"text": HALF, "label": "pear"}, TEXT),
        ({"text": "a", "label": HALF}, TEXT),
        ({"text": "a", "label": ["b", HALF]}, SEVERAL),
        ({"text": HALF}, CAUSAL),
        ({"prompt": HALF, "completion": "b"}, CAUSAL),
        ({"messages": [{"role": "user", "content": HALF}, {"role": "assistant", "content": "b"}]}, None),
        ({"text": "a", "target": HALF}, PAIRS),
    ],
)
def test_half_a_character_is_refused(row: dict[str, Any], spec: InputSpec | None, tmp_path: Path) -> None:
    """Bug: JSON can hold half of a character's escape, and a tokenizer's TypeError was taken for a passing trouble."""
    source = json_lines(tmp_path / "r.jsonl", [row] * 4)
    said = r"r\.jsonl: line 1: it holds half a character \('\\ud83d'\), which is no text; mend it or leave it out"
    with pytest.raises(Refused, match=said):
        prepared(tmp_path / "d", source, chat_spec(tmp_path / "t") if spec is None else spec)


def test_half_a_character_is_not_asked(tmp_path: Path) -> None:
    """So it is where a model is asked, also of arguments whose bytes are no UTF-8."""
    with pytest.raises(Refused, match="text 1: it holds half a character"):
        list(asked_texts(["\udcff"], chats=True))
    with pytest.raises(Refused, match="line 1: it holds half a character"):
        list(asked_rows(json_lines(tmp_path / "a.jsonl", [{"text": HALF}]), DataRequest(source="s"), TEXT, False))


@pytest.mark.parametrize(
    ("spec", "lengths", "said"),
    [
        (TEXT, {"max_length": 1}, "max_length is 1, and the tokenizer puts 2 tokens of its own .* give at least 3"),
        (TEXT, {"max_length": 2}, "max_length is 2, .* give at least 3"),
        (TEXT, {"max_length": 3}, ""),
        (CAUSAL, {"max_length": 1}, "max_length is 1, and a token is learned from the ones before it; give at least 2"),
        (CAUSAL, {"max_length": 2}, ""),
        (PAIRS, {"max_length": 1, "target_length": 8}, "max_length is 1, .* give at least 3"),
        (PAIRS, {"max_length": 8, "target_length": 1}, "target_length is 1, .* give at least 3"),
        (PAIRS, {"max_length": 3}, ""),
    ],
)
def test_lengths_that_hold_no_text_are_refused(
    spec: InputSpec, lengths: dict[str, int], said: str, tmp_path: Path
) -> None:
    """Bug: a length of 1 ended in an error of arrays; the refusal names the least that is allowed."""
    source = json_lines(tmp_path / "r.jsonl", [{**row, "target": "a"} for row in FRUITS])
    if not said:
        assert prepared(tmp_path / "d", source, spec, **lengths).size("train")
        return
    with pytest.raises(Refused, match=said):
        prepared(tmp_path / "d", source, spec, **lengths)


def test_long_csv_fields_are_read(tmp_path: Path) -> None:
    """Bug: a field of more than 131,072 characters was refused; other readers of the process keep their limit."""
    limit = csv.field_size_limit()
    long = "x" * 140_000
    (tmp_path / "r.csv").write_text("text,label\n" + "".join(f"{n} {long},{n % 2}\n" for n in range(6)))
    data = prepared(tmp_path / "d", tmp_path / "r.csv")
    assert all(text.endswith("x" * 20) for text in texts(data, "train"))
    assert csv.field_size_limit() == limit


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_a_list_in_json_may_begin_with_a_byte_order_mark(encoding: str, tmp_path: Path) -> None:
    """Bug: a file as some editors save it was taken for JSON lines and refused."""
    (tmp_path / "r.json").write_text(json.dumps(FRUITS), encoding=encoding)
    assert prepared(tmp_path / "d", tmp_path / "r.json").size("train") == 16


def test_bars_at_the_end_of_several_labels_hold_none(tmp_path: Path) -> None:
    """Bug: white space after the last bar was taken for a label that is missing."""
    spelled = ["a | b | ", " | ", "|b", "a"]
    source = json_lines(tmp_path / "r.jsonl", [{"text": f"t{n}", "label": spelled[n % 4]} for n in range(12)])
    data = prepared(tmp_path / "d", source, SEVERAL)
    assert data.labels == ("a", "b")
    found = {tuple(row) for split in ("train", "test") for row in whole(data, split)[LABELS].tolist()}
    assert found == {(1, 1), (0, 0), (0, 1), (1, 0)}


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (1e39, r"line 1: a number in column 'label' is beyond those of 32 bits, 3\.4e\+38; scale the numbers"),
        ("-1e39", "line 1: a number in column 'label' is beyond those of 32 bits"),
        (10**400, "line 1: a number in column 'label' is beyond those of 32 bits"),
        ("1_00", "line 1: '1_00' in column 'label' is no number"),
        ("nan", "line 1: 'nan' in column 'label' is no number"),
    ],
)
def test_numbers_that_cannot_be_kept_are_refused(value: Any, said: str, tmp_path: Path) -> None:
    """Bug: a number too large became infinite, and one with an underscore another than its writer meant."""
    source = json_lines(tmp_path / "r.jsonl", [{"text": f"t{n}", "label": value} for n in range(6)])
    with pytest.raises(Refused, match=said):
        prepared(tmp_path / "d", source, NUMBERS)
