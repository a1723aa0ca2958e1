"""Tables that were joined badly: two columns of a name, and headings between rows; both are refused."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fleetune.data.tables import open_table
from fleetune.errors import Refused
from tests.support.data.samples import CAUSAL, FRUITS, TEXT, json_lines, prepared

TWICE = pa.Table.from_arrays([pa.array(["x"]), pa.array(["good"]), pa.array(["A"])], names=["text", "label", "label"])


def test_two_columns_of_a_name_are_refused(tmp_path: Path) -> None:
    """Nobody knows which one is meant; all formats refuse it."""
    pq.write_table(TWICE, tmp_path / "r.parquet")
    with pa.OSFile(str(tmp_path / "r.arrow"), "wb") as out, pa.ipc.new_stream(out, TWICE.schema) as stream:
        stream.write_table(TWICE)
    (tmp_path / "r.csv").write_text("text,label,label\nx,good,A\n")
    for name in ("r.parquet", "r.arrow", "r.csv"):
        with pytest.raises(Refused, match=rf"{name}: a column name occurs twice .*\(text, label, label\)"):
            open_table(tmp_path / name)


@pytest.mark.parametrize("row", ['{"text": "x", "label": "a", "label": "b"}', '{"m": [{"a": 1, "a": 2}]}'])
def test_two_values_of_a_key_are_refused(row: str, tmp_path: Path) -> None:
    """The parser of JSON would keep the last; a key that is given twice is refused, at any depth and line."""
    (tmp_path / "r.jsonl").write_text('{"text": "x", "label": "a"}\n' + row + "\n")
    (tmp_path / "r.json").write_text(f"[{row}]")
    with pytest.raises(Refused, match=r"r\.jsonl: line 2 is not JSON \(key '(label|a)' is given twice\)"):
        list(open_table(tmp_path / "r.jsonl").rows())
    with pytest.raises(Refused, match=r"r\.json: it is not JSON \(key '(label|a)' is given twice\)"):
        open_table(tmp_path / "r.json")


@pytest.mark.parametrize("heading", ["text,label", "label,text", "\ufefftext,label "])
def test_a_heading_between_rows_is_refused(heading: str, tmp_path: Path) -> None:
    """Files that were joined with their headings have rows that are none, whose columns may be in another order."""
    (tmp_path / "r.csv").write_text(f"text,label\na,x\nb,y\n{heading}\nc,x\n")
    with pytest.raises(Refused, match=r"r\.csv: line 4 holds the names of columns \(text, label\)"):
        prepared(tmp_path / "d", tmp_path / "r.csv", TEXT)


def test_a_heading_of_one_column_and_one_that_became_a_row_are_refused(tmp_path: Path) -> None:
    """A heading is none of a single column's texts, nor a row of a table that another program has joined."""
    (tmp_path / "r.csv").write_text("text\na\ntext\nb\n")
    with pytest.raises(Refused, match=r"r\.csv: line 3 holds the names of columns \(text\)"):
        prepared(tmp_path / "d", tmp_path / "r.csv", CAUSAL)
    pq.write_table(pa.Table.from_pylist([*FRUITS, {"text": "text", "label": "label"}]), tmp_path / "r.parquet")
    with pytest.raises(Refused, match=r"r\.parquet: row 21 holds the names of columns"):
        prepared(tmp_path / "d", tmp_path / "r.parquet", TEXT)


def test_words_that_columns_have_may_be_said(tmp_path: Path) -> None:
    """A row of which only one cell is the name of a column is a row.

    Bug: so is one whose cells are all one name, such as the French of "source", and a text of JSON that is "text".
    """
    source = json_lines(tmp_path / "r.jsonl", [*FRUITS, {"text": "label", "label": "pear"}])
    assert prepared(tmp_path / "d", source, TEXT).size("train") == 17
    lines = json_lines(tmp_path / "lines.jsonl", [{"text": text} for text in ("once", "text", "upon", "a", "time")])
    assert prepared(tmp_path / "e", lines, CAUSAL).size("train") == 4
    (tmp_path / "r.csv").write_text("source,target\n" + "".join(f"{n},zero\n" for n in range(9)) + "source,source\n")
    pairs = prepared(tmp_path / "f", tmp_path / "r.csv", TEXT, text_column="source", label_column="target")
    assert pairs.labels == ("source", "zero")
