"""Invalid data are refused in one sentence and leave nothing on disk, and early where possible."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fleetune.contracts.input_spec import InputSpec
from fleetune.contracts.run_config import DataRequest
from fleetune.data.prepared_data import PreparedData
from fleetune.data.sources import validate_data
from fleetune.errors import Refused
from tests.support.data.samples import CAUSAL, FRUITS, IMAGES, TEXT, fake_stdlib, json_lines, prepared

GOOD = json.dumps(FRUITS[0])
FILES: dict[str, tuple[str, str, str]] = {
    "nothing at all": ("r.jsonl", "", r"r\.jsonl: the file is empty"),
    "an empty CSV": ("r.csv", "", r"r\.csv: the file is empty"),
    "a CSV with a heading only": ("r.csv", "text,label\n", r"r\.csv: no samples in it"),
    "half an object": ("r.jsonl", GOOD + '\n{"text": "a', r"r\.jsonl: line 2 is not JSON"),
    "a list": ("r.jsonl", GOOD + "\n\n[1]\n", r"line 3 holds list; give one JSON object per line"),
    "binary": ("r.jsonl", GOOD + "\n\x00\x01\n", r"line 2 is not JSON"),
    "too many fields": ("r.csv", "text,label\na,b\nc,d,e\n", r"line 3 has 3 fields, the heading 2"),
    "an open quote": ("r.csv", 'text,label\na,b\n"c,d\n', r"r\.csv: line \d+ cannot be read"),
    "a column twice": ("r.csv", "text,text\na,b\n", r"occurs twice in the header \(text, text\)"),
    "no label column": ("r.csv", "text,kind,body\na,b,c\n", r"no column 'label' .* it has text, kind, body"),
    "no text column": ("r.csv", "body,label\na,b\n", r"no column 'text' .* data\.text_column"),
    "one class": ("r.csv", "text,label\na,x\nb,x\n", r"every row has the label 'x'"),
    "an empty label": ("r.csv", "text,label\na,x\nb,\n", r"line 3 has no label in column 'label'"),
    "no text at all": ("r.csv", "text,label\n,x\n  ,y\n", r"r\.csv: no samples in it"),
    "a text missing later": ("r.jsonl", GOOD + '\n{"label": "a"}', r"line 2 has nothing in column 'text'"),
    "a key missing later": ("r.jsonl", GOOD + '\n{"text": "a"}', r"line 2 has no label"),
    "a number as text": ("r.jsonl", GOOD + '\n{"text": 5, "label": "a"}', r"line 2: column 'text' holds int"),
    "a fraction as label": ("r.jsonl", GOOD + '\n{"text": "a", "label": 0.5}', r"line 2: label 0\.5"),
    "labels of two kinds": ("r.jsonl", GOOD + '\n{"text": "a", "label": 1}', "mixes strings and whole numbers"),
    "one sample": ("r.jsonl", GOOD + "\n" + GOOD.replace('"pear"', '"apple"'), r"1 distinct sample\(s\), too few"),
    "an unknown suffix": (
        "r.xml",
        "<a/>",
        r"r\.xml: files end in \.jsonl, \.csv, \.parquet, \.arrow, \.json \(got '\.xml'\)",
    ),
    "no suffix": ("r", "x", "files end in"),
    "a broken Parquet": ("r.parquet", "PAR1 nonsense", r"r\.parquet: not a whole parquet file"),
}


@pytest.mark.parametrize("case", FILES)
def test_bad_file_is_refused(case: str, tmp_path: Path) -> None:
    """The refusal names the file, the place and the problem, and leaves no folder."""
    name, content, says = FILES[case]
    (tmp_path / name).write_text(content)
    with pytest.raises(Refused, match=says) as caught:
        prepared(tmp_path / "d", tmp_path / name)
    assert "\n" not in str(caught.value)
    assert [path.name for path in tmp_path.iterdir()] == [name]


PREFERENCES = r"no column 'text' .*data\.text_column; preferences are not learned, .*completion beside a prompt"


@pytest.mark.parametrize(
    ("columns", "says"),
    [
        (("prompt", "chosen", "rejected"), PREFERENCES),
        (("question", "answer"), "text_column, or give messages, instruction and output, or prompt and completion"),
    ],
)
def test_what_rows_of_another_format_may_have_is_told(columns: tuple[str, ...], says: str, tmp_path: Path) -> None:
    """Bug: the only advice was to choose one column, which trains half of a pair, or none of what was preferred."""
    source = json_lines(tmp_path / "r.jsonl", [dict.fromkeys(columns, "words")])
    with pytest.raises(Refused, match=says):
        validate_data(DataRequest(source=str(source)), "causal-lm")


@pytest.mark.parametrize("encoding", ["utf-16", "cp1252"])
@pytest.mark.parametrize("name", ["r.csv", "r.jsonl", "r.json", "list.json"])
def test_not_utf8_is_refused(name: str, encoding: str, tmp_path: Path) -> None:
    """What to do about it is told, also where it shows far behind the first row; JSON allows a list in UTF-16."""
    rows = [{**row, "text": row["text"] + "\u00e9" * (n // 2000)} for n, row in enumerate(FRUITS * 101)]
    plain = [json.dumps(row, ensure_ascii=False) for row in rows]
    if name == "r.csv":
        plain = ["text,label", *(f"{row['text']},{row['label']}" for row in rows)]
    text = f"[{', '.join(plain)}]" if name == "list.json" else "\n".join(plain)
    (tmp_path / name).write_bytes(text.encode(encoding))
    if (name, encoding) == ("list.json", "utf-16"):
        assert prepared(tmp_path / "d", tmp_path / name).size("train")
        return
    with pytest.raises(Refused, match=rf"{name}: it is not UTF-8 \(.*\); save it as UTF-8"):
        prepared(tmp_path / "d", tmp_path / name)


POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:abc\nsize 123\n"


@pytest.mark.parametrize("suffix", ["csv", "jsonl", "json", "parquet", "arrow"])
def test_a_pointer_of_git_lfs_is_told(suffix: str, tmp_path: Path) -> None:
    """Bug: what a clone has instead of its data was a damaged file, or one without the columns; so of images."""
    (tmp_path / f"r.{suffix}").write_text(POINTER)
    with pytest.raises(Refused, match=rf"r\.{suffix}: it is only a pointer of Git LFS, and no data; run git lfs pull"):
        validate_data(DataRequest(source=str(tmp_path / f"r.{suffix}")), CLASSIFY)


@pytest.mark.parametrize("name", ["1.png", "1.npy"])
def test_an_image_that_is_a_pointer_of_git_lfs_is_told(name: str, tmp_path: Path) -> None:
    """With the number and the name of the image."""
    for kind in ("cat", "dog"):
        (tmp_path / "set" / kind).mkdir(parents=True)
        (tmp_path / "set" / kind / name).write_text(POINTER)
    with pytest.raises(Refused, match=rf"image 1, image \({name}\): it is only a pointer of Git LFS"):
        prepared(tmp_path / "d", tmp_path / "set", IMAGES)


def test_cut_parquet_is_refused(tmp_path: Path) -> None:
    """A truncated Parquet file is refused by name."""
    pq.write_table(pa.Table.from_pylist(FRUITS), tmp_path / "r.parquet")
    (tmp_path / "r.parquet").write_bytes((tmp_path / "r.parquet").read_bytes()[:-100])
    with pytest.raises(Refused, match=r"r\.parquet: not a whole parquet file"):
        prepared(tmp_path / "d", tmp_path / "r.parquet")


def test_damaged_page_is_refused(tmp_path: Path) -> None:
    """A Parquet file with a valid footer and damaged pages is refused."""
    rows = [{"text": f"text {n}", "label": str(n % 2)} for n in range(2000)]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "r.parquet")
    content = bytearray((tmp_path / "r.parquet").read_bytes())
    content[4:400] = b"\xff" * 396
    (tmp_path / "r.parquet").write_bytes(content)
    with pytest.raises(Refused, match=r"r\.parquet: cannot be read after row 0"):
        prepared(tmp_path / "d", tmp_path / "r.parquet")


@pytest.mark.parametrize("source", ["gone.jsonl", "./gone", "/no/such/folder", "a b"])
def test_missing_source_is_refused(source: str, tmp_path: Path) -> None:
    """The refusal of a missing source lists the allowed kinds of sources."""
    with pytest.raises(Refused, match="does not exist; allowed are digits, docstrings, stdlib-sources"):
        prepared(tmp_path / "d", source)


def test_folder_without_train_data_is_refused(tmp_path: Path) -> None:
    """The refusal lists the data files that were found."""
    (tmp_path / "set").mkdir()
    with pytest.raises(Refused, match="no train data.*found: none"):
        prepared(tmp_path / "d", tmp_path / "set")
    json_lines(tmp_path / "set" / "test.jsonl", FRUITS)
    with pytest.raises(Refused, match=r"found: test\.jsonl\)"):
        prepared(tmp_path / "d", tmp_path / "set")


def test_texts_by_themselves_are_refused_with_the_way_on(tmp_path: Path) -> None:
    """Bug: of a folder of .txt files it was said that there are none, and of each listed one to convert it, to what
    nobody said."""
    text = tmp_path / "set" / "a.txt"
    text.parent.mkdir()
    text.write_text("once upon a time")
    with pytest.raises(Refused, match=r'found: none; not read: a\.txt; .* a line {"text": "\.\.\."} of \.jsonl\)'):
        prepared(tmp_path / "d", text.parent, CAUSAL)
    with pytest.raises(Refused, match=r'got \'\.txt\'\); .* a line {"text": "\.\.\."} of \.jsonl'):
        prepared(tmp_path / "e", text, CAUSAL)


@pytest.mark.parametrize(
    ("spec", "changes", "says"),
    [
        (TEXT, {"max_length": 65}, "max_length is 65, but the model has 64 positions"),
        ({"vocab_size": 259}, {}, "vocab_size is 259, but text split into bytes needs 260"),
        ({"tokenizer": Path("/no/such")}, {}, "no tokenizer folder"),
    ],
)
def test_text_beyond_the_model_is_refused(spec: Any, changes: dict[str, int], says: str, tmp_path: Path) -> None:
    """Texts beyond the model's positions or vocabulary are refused."""
    source = json_lines(tmp_path / "r.jsonl", FRUITS)
    if isinstance(spec, dict):
        spec = InputSpec(task="sequence-classification", **spec)
    with pytest.raises(Refused, match=says):
        prepared(tmp_path / "d", source, spec, **changes)
    assert not (tmp_path / "d").exists()


def test_occupied_folder_is_left_alone(tmp_path: Path) -> None:
    """A non-empty output folder is refused and left unchanged."""
    source = json_lines(tmp_path / "r.jsonl", FRUITS)
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "mine").write_text("keep")
    with pytest.raises(Refused, match="already holds something"):
        prepared(tmp_path / "d", source)
    assert (tmp_path / "d" / "mine").read_text() == "keep"


def test_empty_folder_is_filled(tmp_path: Path) -> None:
    """An existing empty output folder is used."""
    (tmp_path / "d").mkdir()
    assert prepared(tmp_path / "d", json_lines(tmp_path / "r.jsonl", FRUITS)).size("train") == 16
    assert sorted(path.name for path in tmp_path.iterdir()) == ["d", "r.jsonl"]


IMAGE_CASES = {
    "a flat list": ([1, 2, 3], "not an image"),
    "ragged rows": ([[1, 2], [3]], "not an image"),
    "two channels": ([[[1, 2]]], "not an image"),
    "words": ([["a"]], "not an image"),
    "beyond a byte": ([[256]], "whole numbers 0..255"),
    "below zero": ([[-1]], "whole numbers 0..255"),
    "beyond one": ([[1.5]], "fractions 0..1"),
    "a path": ("a.npy", "no file 'a.npy' inside"),
    "an image in base64": ("iVBORw0KGgo/" * 400, "no file .{200,210} inside"),
}


@pytest.mark.parametrize("case", IMAGE_CASES)
def test_bad_image_is_refused(case: str, tmp_path: Path) -> None:
    """An invalid image is refused by its line."""
    value, says = IMAGE_CASES[case]
    rows = [{"image": [[0, 1]], "label": 0}, {"image": value, "label": 1}]
    with pytest.raises(Refused, match=rf"line 2, image: .*{says}"):
        prepared(tmp_path / "d", json_lines(tmp_path / "r.jsonl", rows), IMAGES)


def test_damaged_artifact_is_refused_by_file(tmp_path: Path) -> None:
    """A missing, cut or exchanged array is named when the folder is opened."""
    source = json_lines(tmp_path / "r.jsonl", FRUITS)
    data = prepared(tmp_path / "d", source)
    ids = data.folder / "test" / "input_ids.npy"
    content = ids.read_bytes()
    for damaged in (content[:150], b"", b"\x93NUMPY nonsense"):
        ids.write_bytes(damaged)
        with pytest.raises(Refused, match=r"test/input_ids\.npy: cannot be read"):
            PreparedData(data.folder)
    np.save(ids, np.zeros((1, 2), dtype=np.int32))
    with pytest.raises(Refused, match=r"input_ids\.npy: holds int32 \(1, 2\), data\.json says int32 \(4, 24\)"):
        PreparedData(data.folder)
    ids.unlink()
    with pytest.raises(Refused, match=r"input_ids\.npy"):
        PreparedData(data.folder)


def test_unknown_split_is_refused(tmp_path: Path) -> None:
    """The refusal of an unknown split lists the existing ones."""
    data = prepared(tmp_path / "d", json_lines(tmp_path / "r.jsonl", FRUITS))
    with pytest.raises(Refused, match="no split 'dev'; it has train, test"):
        data.size("dev")


def test_unlabelled_causal_text_is_fine(tmp_path: Path) -> None:
    """Causal-lm needs no label column."""
    assert prepared(tmp_path / "d", json_lines(tmp_path / "r.jsonl", [{"text": "a"}, {"text": "b"}]), CAUSAL).size(
        "train"
    )


CLASSIFY = "sequence-classification"


def asked(source: object, **changes: Any) -> DataRequest:
    """A request for that source."""
    return DataRequest(source=str(source), **changes)


@pytest.mark.parametrize(
    ("content", "changes", "says"),
    [
        ("text,label\n", {}, r"r\.csv: no samples in it; give at least one row"),
        ("", {}, r"r\.csv: the file is empty"),
        ("text,kind\na,b\n", {}, r"no column 'label' .* it has text, kind"),
        ("text,label\na,b\n", {"text_column": "body"}, r"no column 'body' .* it has text, label"),
        ("text,label\n ,b\n", {}, r"r\.csv: no samples in it"),
    ],
)
def test_a_source_that_cannot_serve_is_refused_at_once(
    content: str, changes: dict[str, str], says: str, tmp_path: Path
) -> None:
    """Regression: unsuitable files were refused only after all devices had been measured."""
    (tmp_path / "r.csv").write_text(content)
    with pytest.raises(Refused, match=says):
        validate_data(asked(tmp_path / "r.csv", **changes), CLASSIFY)


def test_an_empty_test_split_is_refused(tmp_path: Path) -> None:
    """Early validation checks both splits."""
    (tmp_path / "set").mkdir()
    json_lines(tmp_path / "set" / "train.jsonl", FRUITS)
    (tmp_path / "set" / "test.csv").write_text("text,label\n")
    with pytest.raises(Refused, match=r"test\.csv: no samples"):
        validate_data(asked(tmp_path / "set"), CLASSIFY)


@pytest.mark.parametrize(
    ("source", "task", "says"),
    [
        ("digits", CLASSIFY, "no column 'text'"),
        ("docstrings", "image-classification", "no column 'image'"),
        ("stdlib-sources", CLASSIFY, "without labels"),
    ],
)
def test_built_in_sets_are_known_without_making_them(source: str, task: str, says: str) -> None:
    """Built-in sets are refused with the same sentence as in preparation, without building them."""
    with pytest.raises(Refused, match=says):
        validate_data(asked(source), task)


@pytest.mark.parametrize(
    ("source", "task"),
    [("digits", "image-classification"), ("docstrings", CLASSIFY), ("stdlib-sources", "causal-lm")],
)
def test_good_sets_pass(source: str, task: str, tmp_path: Path) -> None:
    """Suitable sets pass, and hub names are not looked up."""
    validate_data(asked(source), task)
    validate_data(asked("somebody/something"), task)


@pytest.mark.parametrize(("test_samples", "good"), [(4, True), (5, False)])
def test_fewer_test_rows_than_asked_for(test_samples: int, good: bool, tmp_path: Path) -> None:
    """Regression: scores silently came from fewer rows; too few are refused early and by preparation."""
    request = asked(json_lines(tmp_path / "r.jsonl", FRUITS), test_samples=test_samples)
    if good:
        validate_data(request, CLASSIFY)
        assert prepared(tmp_path / "d", request.source, test_samples=test_samples).size("test") == test_samples
        return
    says = r"test_samples asks for 5 rows, but .* has 4 to test on; ask for at most 4, or give more"
    with pytest.raises(Refused, match=says):
        validate_data(request, CLASSIFY)
    with pytest.raises(Refused, match=says):
        prepared(tmp_path / "d", request.source, TEXT, test_samples=test_samples)


def test_a_test_split_of_its_own_is_counted(tmp_path: Path) -> None:
    """The rows of test files are counted as they are."""
    (tmp_path / "set").mkdir()
    json_lines(tmp_path / "set" / "train.jsonl", FRUITS)
    json_lines(tmp_path / "set" / "test.jsonl", FRUITS[:3])
    validate_data(asked(tmp_path / "set", test_samples=3), CLASSIFY)
    with pytest.raises(Refused, match="has 3 to test on"):
        validate_data(asked(tmp_path / "set", test_samples=4), CLASSIFY)


def test_blocks_of_packed_text_are_counted_when_they_are_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Preparation counts the test blocks of packed text."""
    fake_stdlib(tmp_path / "library", {f"{name}.py": f"{name} = 1\n" * 9 for name in "abc"}, monkeypatch)
    with pytest.raises(Refused, match=r"test_samples asks for 100 rows, but stdlib-sources has \d+ to test on"):
        prepared(tmp_path / "d", "stdlib-sources", CAUSAL, max_length=16, test_samples=100)


def test_a_built_in_set_is_made_where_its_test_rows_are_counted() -> None:
    """Regression: too many test rows of a built-in set were refused only after discovery."""
    validate_data(DataRequest(source="digits", test_samples=10), "image-classification")
    with pytest.raises(Refused, match=r"test_samples asks for 1000 rows, but digits has \d+ to test on"):
        validate_data(DataRequest(source="digits", test_samples=1000), "image-classification")
