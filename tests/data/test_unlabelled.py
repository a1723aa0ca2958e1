"""What a model is asked about is read from the columns of the run, with or without answers."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fleetune.contracts.input_spec import InputSpec
from fleetune.contracts.run_config import DataRequest
from fleetune.data.dialogues import Chat, Completion
from fleetune.data.unlabelled import asked_rows, asked_texts
from fleetune.errors import Refused
from tests.support.data.samples import CAUSAL, IMAGES, TEXT, json_lines

REQUEST = DataRequest(source="set", text_column="body")
PAIRS = InputSpec(task="seq2seq")
USER, ANSWER = {"role": "user", "content": "a?"}, {"role": "assistant", "content": "b"}


def contents(path: Path, spec: InputSpec, chats: bool = False, format: str | None = None) -> list[Any]:
    """Contents of the rows of a file."""
    return [each.content for each in asked_rows(path, replace(REQUEST, format=format), spec, chats)]


def test_rows_and_lines_are_read_without_labels(tmp_path: Path) -> None:
    """The text column of the run; lines of a .txt file, without empty ones."""
    table = json_lines(tmp_path / "a.jsonl", [{"body": "one"}, {"body": "2", "label": "x"}])
    assert contents(table, TEXT) == ["one", "2"]
    (tmp_path / "a.txt").write_text("one\n\ntwo\n")
    assert contents(tmp_path / "a.txt", TEXT) == ["one", "two"]
    assert contents(tmp_path / "a.txt", CAUSAL, chats=True)[1] == Chat(({"role": "user", "content": "two"},))


@pytest.mark.parametrize(
    ("row", "wanted"),
    [
        ({"messages": [USER, ANSWER]}, Chat((USER,))),
        ({"messages": [USER]}, Chat((USER,))),
        ({"conversations": [{"from": "human", "value": "a?"}]}, Chat((USER,))),
        ({"instruction": "a?"}, Chat((USER,))),
        ({"instruction": "a?", "output": "b"}, Chat((USER,))),
        ({"prompt": "a?"}, Completion("a?", "")),
        ({"prompt": "a?", "completion": "b"}, Completion("a?", "")),
        ({"prompt": [USER]}, Chat((USER,))),
        ({"prompt": [USER], "completion": [ANSWER]}, Chat((USER,))),
    ],
)
def test_dialogues_are_asked_without_their_last_answer(row: dict[str, Any], wanted: Any, tmp_path: Path) -> None:
    """In every spelling that training reads, whether the answer is there or not."""
    (found,) = contents(json_lines(tmp_path / "a.jsonl", [row]), CAUSAL)
    assert found == wanted


@pytest.mark.parametrize(
    "row",
    [
        {"prompt": "a?"},
        {"prompt": "a?", "completion": "b"},
        {"body": "a?"},
        {"messages": [USER]},
        {"prompt": [USER]},
    ],
)
def test_a_model_of_chats_is_asked_in_chats(row: dict[str, Any], tmp_path: Path) -> None:
    """Whatever the row, a user says it. Bug: a prompt was asked raw, without the template of training."""
    assert contents(json_lines(tmp_path / "a.jsonl", [row]), CAUSAL, chats=True) == [Chat((USER,))]


@pytest.mark.parametrize(
    ("row", "format", "wanted"),
    [
        ({"prompt": "a?", "prompt_id": "7", "messages": [USER, ANSWER]}, None, Chat((USER,))),
        ({"prompt": "a?", "completion": "b", "messages": [USER, ANSWER]}, "completion", Completion("a?", "")),
        ({"body": "a text", "messages": [USER, ANSWER]}, "chat", Chat((USER,))),
        ({"body": "a text", "messages": [USER, ANSWER]}, None, "a text"),
        ({"body": "a text", "prompt": "a?"}, "completion", Completion("a?", "")),
        ({"body": "a text"}, "chat", "a text"),
        ({"body": "", "messages": [USER]}, None, Chat((USER,))),
    ],
)
def test_rows_of_several_formats_are_read_as_in_training(
    row: dict[str, Any], format: str | None, wanted: Any, tmp_path: Path
) -> None:
    """Bug: a prompt was asked raw beside messages, and data.format was not looked at; a row that has nothing of the
    format is asked by what it has."""
    assert contents(json_lines(tmp_path / "a.jsonl", [row]), CAUSAL, format=format) == [wanted]


def test_a_text_column_that_is_named_as_an_answer_is_no_answer(tmp_path: Path) -> None:
    """A row without it is refused, though rows to ask about need no answer."""
    path = json_lines(tmp_path / "a.jsonl", [{"other": "a"}])
    with pytest.raises(Refused, match="line 1 has nothing in column 'output'"):
        list(asked_rows(path, DataRequest(source="set", text_column="output"), CAUSAL, False))


def test_a_line_ends_where_those_of_files_do(tmp_path: Path) -> None:
    """Bug: a form feed, U+0085 and U+2028 within a line made two inputs of it, and all later numbers wrong."""
    lines = ["a form\x0cfeed", "", "two\u2028parts\x85", "last"]
    (tmp_path / "a.txt").write_bytes("\ufeff".encode() + "\r\n".join(lines).encode())
    found = [(each.location[-1], each.content) for each in asked_rows(tmp_path / "a.txt", REQUEST, TEXT, False)]
    assert found == [("1", lines[0]), ("3", lines[2]), ("4", lines[3])]


def test_every_row_and_line_has_its_own_place(tmp_path: Path) -> None:
    """Bug: errors and notes called every row of a file `text 1`."""
    table = json_lines(tmp_path / "a.jsonl", [{"body": "one"}, {"body": "two"}])
    (tmp_path / "b.txt").write_text("\nthree\n")
    found = [each.location for path in (table, tmp_path / "b.txt") for each in asked_rows(path, REQUEST, TEXT, False)]
    assert found == [f"{table}: line 1", f"{table}: line 2", f"{tmp_path / 'b.txt'}: line 2"]


@pytest.mark.parametrize(
    ("name", "content", "spec", "said"),
    [
        ("a.jsonl", '{"text": "x"}', TEXT, r"a.jsonl: line 1 has nothing in column 'body'; fill it, or name another"),
        ("a.jsonl", '{"text": "x"}', CAUSAL, "or give messages, instruction or prompt"),
        ("a.jsonl", '{"messages": [{"content": "x"}]}', CAUSAL, "line 1, message 1: it has no role"),
        ("a.jsonl", '{"prompt": 3}', CAUSAL, "line 1: column 'prompt' holds int"),
        ("a.jsonl", '{"body": "a"}\n{"body": " "}', TEXT, r"a.jsonl: line 2: column 'body' is empty; fill it"),
        ("a.jsonl", '{"body": ["a", "b"]}', TEXT, r"line 1: column 'body' holds list, not text; give strings"),
        ("a.jsonl", '{"body": {"en": "a"}}', CAUSAL, "line 1: column 'body' holds dict, not text"),
        ("a.jsonl", '{"body": 5}', TEXT, "line 1: column 'body' holds int, not text"),
        ("a.jsonl", '{"body": true}', PAIRS, "line 1: column 'body' holds bool, not text"),
        ("a.jsonl", '{"body": NaN}', TEXT, "line 1: column 'body' holds float, not text"),
        ("a.jsonl", '{"prompt": ["a"]}', PAIRS, "line 1: column 'prompt' holds list, not text"),
        ("a.jsonl", '{"prompt": " "}', PAIRS, "line 1: column 'prompt' is empty"),
        ("a.csv", "body,label\na,b\nbody,label\n", TEXT, "holds the names of columns .* leave it out"),
        ("a.xyz", "x", TEXT, "files end in"),
        ("a.txt", "a.png", IMAGES, "lines of text, and the model reads images; give images, or a table of them"),
        ("a.txt", b"\xff\xfe\xff", TEXT, "cannot be read .*; give a text file in UTF-8"),
        ("a.txt", None, TEXT, "cannot be read .*; give a text file in UTF-8"),
        ("a.txt", "version https://git-lfs.github.com/spec/v1", TEXT, "it is only a pointer of Git LFS"),
        ("a.csv", None, TEXT, "no such file; give a file that ends in"),
    ],
)
def test_rows_that_cannot_be_asked_are_refused(
    name: str, content: str | bytes | None, spec: InputSpec, said: str, tmp_path: Path
) -> None:
    """The place is named, what is wrong there, and what to do. Bug: lists, objects, numbers and NaN were asked as
    Python spells them, and a heading in the middle was asked, all of which training refuses."""
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(Refused, match=said):
        contents(path, spec)


def test_empty_texts_are_refused() -> None:
    """An empty argument is named by its number."""
    with pytest.raises(Refused, match="text 2 is empty; give words"):
        list(asked_texts(["a", " "], chats=False))


def test_arguments_that_are_no_texts_are_refused() -> None:
    """Bug: a notebook's column of numbers or NaN ended in an AttributeError."""
    unlike: list[Any] = ["a", float("nan")]
    with pytest.raises(Refused, match="text 2 is float, not text; give strings"):
        list(asked_texts(unlike, chats=True))
