"""Columns beside what is read: rows that they take out of training are refused, wherever in a file they are."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fleetune.contracts.input_spec import InputSpec
from fleetune.errors import Refused
from tests.support.data.chat_samples import chat_spec, chats
from tests.support.data.samples import CAUSAL, TEXT, json_lines, prepared

PAIRS = InputSpec(task="seq2seq", vocab_size=264, decoder_start_token_id=0)
RATED = [{"prompt": f"q{n}", "completion": f"a{n}"} for n in range(12)]
ROWS: dict[str, tuple[InputSpec, dict[str, Any]]] = {
    "texts": (CAUSAL, {}),
    "pairs": (PAIRS, {"target": "b"}),
    "classes": (TEXT, {"label": "x"}),
}


def plain(task: str, odd: dict[str, Any]) -> list[dict[str, Any]]:
    """Rows of plain texts, of which the one before the last has more columns."""
    _, more = ROWS[task]
    rows: list[dict[str, Any]] = [{"text": f"text {n}", **more} for n in range(8)]
    rows[0] |= {"label": "y"} if "label" in more else {}
    rows[6] |= odd
    return rows


def notes(folder: Path, source: Path | str, spec: InputSpec, **changes: Any) -> list[str]:
    """What is said of columns."""
    return [note for note in prepared(folder / "d", source, spec, **changes).info.notes if "rows have" in note]


@pytest.mark.parametrize("task", ROWS)
@pytest.mark.parametrize("odd", [{"weight": 0}, {"loss": False}, {"train": 0.0}, {"training": "False"}])
def test_a_plain_row_that_is_taken_out_is_refused(task: str, odd: dict[str, Any], tmp_path: Path) -> None:
    """Bug: a row of a text with a weight of 0 was learned like any other, and nothing was said where the first row had
    none."""
    spec, (name,) = ROWS[task][0], odd
    source = json_lines(tmp_path / "r.jsonl", plain(task, odd))
    with pytest.raises(Refused, match=rf"r\.jsonl: line 7: column '{name}' is .*leave out the row, or the column"):
        prepared(tmp_path / "d", source, spec)


def test_a_row_of_a_csv_file_that_is_taken_out_is_refused(tmp_path: Path) -> None:
    """In a CSV file numbers and truth values are texts; 1 keeps a row, and so does nothing, in chats, too."""
    (tmp_path / "r.csv").write_text("text,weight\na,1\nb,\nc,1.0\nd,0.0\n")
    with pytest.raises(Refused, match=r"r\.csv: line 5: column 'weight' is '0.0'"):
        prepared(tmp_path / "d", tmp_path / "r.csv", CAUSAL)
    (tmp_path / "c.csv").write_text("instruction,output,weight,train\n" + "a,b,1,True\nc,d,,\ne,f,1.0,1\ng,h,1,true\n")
    assert prepared(tmp_path / "e", tmp_path / "c.csv", chat_spec(tmp_path / "t")).size("train") == 3


@pytest.mark.parametrize("odd", [{"weight": 1.0}, {"weight": None, "loss": True}, {"loss": 2.5}, {"train": "yes"}])
def test_a_column_that_takes_nothing_out_is_at_most_told(odd: dict[str, Any], tmp_path: Path) -> None:
    """Weights of 1, and what is no flag, are no reason to refuse a file."""
    source = json_lines(tmp_path / "r.jsonl", plain("texts", odd))
    said = [name for name, value in odd.items() if value is not None]
    assert notes(tmp_path, source, CAUSAL) == [f"rows have columns that are not read: {', '.join(said)}"]


@pytest.mark.parametrize("more", [{"test": [0.3]}, {"train": [0.0, 1.5]}])
def test_a_quantity_may_be_0(more: dict[str, list[float]], tmp_path: Path) -> None:
    """Bug: a product that weighs 0 ended a run as if a flag took it out, and no setting of a hub's set could help; one
    other number of any split shows a quantity."""
    for split in ("train", "test"):
        weights = [0, 1, *more.get(split, []), *[None] * 8]
        rows = [{"text": f"{split} {n}", "label": "ab"[n % 2], "weight": weight} for n, weight in enumerate(weights)]
        json_lines(tmp_path / f"{split}.jsonl", rows)
    said = notes(tmp_path / "a", "", TEXT, files=(f"{tmp_path}/t*.jsonl",))
    assert said == ["rows have columns that are not read: weight"]


def test_columns_of_later_rows_and_files_are_told(tmp_path: Path) -> None:
    """Bug: columns that are not read were told by the first row of a file, and by the first file that had any."""
    (tmp_path / "set").mkdir()
    first = [*chats(8), {**chats(1)[0], "score": 1}]
    json_lines(tmp_path / "set" / "a.jsonl", first)
    json_lines(tmp_path / "set" / "b.jsonl", [{"messages": row["messages"], "topic": "t"} for row in chats(9)[8:]])
    spec = chat_spec(tmp_path / "t")
    said = notes(tmp_path, tmp_path / "set", spec, max_length=64)
    assert said == ["rows have columns that are not read: score, topic"]


def test_messages_beside_a_later_text_are_told(tmp_path: Path) -> None:
    """A text is read, and the messages beside it are not, in whichever row they are."""
    source = json_lines(tmp_path / "r.jsonl", plain("texts", {"messages": [], "history": [["a", "b"]]}))
    text, columns = notes(tmp_path, source, CAUSAL)
    assert text == "rows have 'text', which is read, and 'messages', which is not; set data.format to chat to read it"
    assert columns == "rows have columns that are not read: history"


def test_rows_that_are_written_in_two_ways_are_read(tmp_path: Path) -> None:
    """Messages in one row and an instruction in the next are both read, so that neither is told, in Parquet neither."""
    rows = [*chats(6), *({"instruction": f"q{n}", "output": "a"} for n in range(6))]
    spec = chat_spec(tmp_path / "t")
    assert notes(tmp_path / "a", json_lines(tmp_path / "r.jsonl", rows), spec, max_length=64) == []
    rows[0] |= {"instruction": None, "output": None}  # by the first row Arrow knows the columns
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "r.parquet")
    assert notes(tmp_path / "b", tmp_path / "r.parquet", spec, max_length=64) == []


def test_few_of_many_names_are_kept(tmp_path: Path) -> None:
    """Rows that each have a column of their own do not fill the memory or the report."""
    rows = [{**row, f"own {n}": 1} for n, row in enumerate(chats(300))]
    (said,) = notes(tmp_path, json_lines(tmp_path / "r.jsonl", rows), chat_spec(tmp_path / "t"), max_length=64)
    assert said.count("own") == 100


BAD = "column 'label' says that its answer is a bad one, as in data for KTO, .*; leave out such rows, or the column"


@pytest.mark.parametrize(("bad", "good"), [(False, True), ("false", "true")])
@pytest.mark.parametrize("kind", ["texts", "messages", "pairs", "named"])
def test_answers_that_are_said_to_be_bad_are_refused(bad: Any, good: Any, kind: str, tmp_path: Path) -> None:
    """Bug: rows for KTO were learned as good answers whatever their label said."""
    rows: list[dict[str, Any]] = [{**row, "label": good} for row in RATED]
    rows[7]["label"] = bad
    if kind == "messages":
        rows = [{"label": row["label"], "messages": chats(1)[0]["messages"]} for row in rows]
    spec = chat_spec(tmp_path / "t") if kind in ("texts", "messages") else PAIRS
    named: dict[str, Any] = {"text_column": "prompt", "target_column": "completion"} if kind == "named" else {}
    with pytest.raises(Refused, match=rf"r\.jsonl: line 8: {BAD}"):
        prepared(tmp_path / "d", json_lines(tmp_path / "r.jsonl", rows), spec, **named)


@pytest.mark.parametrize("labels", [[True], [0], ["true"], [None, True], [0, 1], ["0", "1"], ["good", ""]])
def test_labels_of_answers_that_say_no_such_thing_are_told(labels: list[Any], tmp_path: Path) -> None:
    """Good answers alone are learned as they are; and bug: rows that spell a class and have its number, 0 or 1, beside
    it were taken for bad answers."""
    rows = [{**row, "label": labels[n % len(labels)]} for n, row in enumerate(RATED)]
    said = notes(tmp_path, json_lines(tmp_path / "r.jsonl", rows), CAUSAL)
    assert said == ["rows have columns that are not read: label"]


def test_texts_have_any_label(tmp_path: Path) -> None:
    """Only answers are good or bad; a language model learns each text."""
    rows = [{"text": f"t{n}", "label": False} for n in range(9)]
    assert notes(tmp_path, json_lines(tmp_path / "r.jsonl", rows), CAUSAL) == []


PARTS = [
    ("sentence1", "sentence2"),
    ("sentence2", "sentence1"),
    ("premise", "hypothesis"),
    ("question1", "question2"),
    ("text_a", "text_b"),
    ("sentence_B", "sentence_A"),
    ("text", "text_pair"),
]


@pytest.mark.parametrize(("read", "other"), PARTS)
@pytest.mark.parametrize("task", ["classes", "pairs"])
def test_half_of_a_text_in_two_columns_is_refused(read: str, other: str, task: str, tmp_path: Path) -> None:
    """Bug: half of each pair of sentences was learned, and nothing was said."""
    said = {"label": "x"} if task == "classes" else {"target": "t"}
    rows = [{read: f"text {n}", other: "", **said} for n in range(8)]
    rows[0] |= {"label": "y"} if task == "classes" else {}
    spec = TEXT if task == "classes" else PAIRS
    assert notes(tmp_path, json_lines(tmp_path / "r.jsonl", rows), spec, text_column=read) == []
    rows[5][other] = "more"
    refused = rf"r\.jsonl: line 6: column '{read}' is read, and '{other}', .*, is not; join the two into one column"
    with pytest.raises(Refused, match=refused):
        prepared(tmp_path / "e", json_lines(tmp_path / "r.jsonl", rows), spec, text_column=read)


OTHERS = [("instruction", "input"), ("instruction", "context"), ("question", "context"), ("1", "2"), ("11", "12")]


@pytest.mark.parametrize(("read", "other"), OTHERS)
def test_a_text_may_be_read_without_another(read: str, other: str, tmp_path: Path) -> None:
    """Bug: classes of instructions, and questions without their context, were refused, which no setting of a hub's set
    could lift, and so were columns of numbers; the other is told."""
    rows = [{read: f"text {n}", other: "more", "target": "t", "label": "xy"[n % 2]} for n in range(8)]
    source = json_lines(tmp_path / "r.jsonl", rows)
    for name, spec in (("a", TEXT), ("b", PAIRS)):
        (said,) = notes(tmp_path / name, source, spec, text_column=read)
        assert said.startswith(f"rows have columns that are not read: {other}")


def test_the_other_half_may_be_what_is_to_be_said(tmp_path: Path) -> None:
    """Paraphrases are pairs of which the one is read and the other written; language models learn each text alone, and
    are told of the other."""
    rows = [{"sentence1": f"a {n}", "sentence2": f"b {n}"} for n in range(8)]
    source = json_lines(tmp_path / "r.jsonl", rows)
    named: dict[str, Any] = {"text_column": "sentence1", "target_column": "sentence2"}
    assert notes(tmp_path / "a", source, PAIRS, **named) == []
    said = notes(tmp_path / "b", source, CAUSAL, text_column="sentence1")
    assert said == ["rows have columns that are not read: sentence2"]


@pytest.mark.parametrize("task", ROWS)
def test_other_texts_beside_the_one_that_is_read_are_told(task: str, tmp_path: Path) -> None:
    """Bug: a title or a context beside a text was left out without a word, in whichever row; numbers are no texts."""
    rows = [{"idx": n, "title": "", **row} for n, row in enumerate(plain(task, {"title": "a title", "topic": "b"}))]
    said = notes(tmp_path, json_lines(tmp_path / "r.jsonl", rows), ROWS[task][0])
    assert said == ["rows have columns that are not read: title, topic"]
