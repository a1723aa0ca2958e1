"""A test split whose labels nobody tells, as those of GLUE, is not tested on."""

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fleetune.contracts.run_config import DataRequest
from fleetune.data.labelled_split import labelled_splits
from fleetune.data.sources import open_source
from fleetune.data.tables import InMemoryTable
from fleetune.errors import Refused
from tests.support.data.samples import CAUSAL, TEXT, json_lines, prepared, texts


def folder(place: Path, splits: dict[str, Any]) -> Path:
    """A folder with ten rows in each split, with these labels in turn; None leaves the key out."""
    place.mkdir()
    for split, labels in splits.items():
        given = [{"label": labels[n % len(labels)]} if labels[n % len(labels)] != "no" else {} for n in range(10)]
        json_lines(place / f"{split}.jsonl", [{"text": f"{split} {n}", **each} for n, each in enumerate(given)])
    return place


NOTE = "the rows of test have no labels (none, or -1), so it is not tested on"


@pytest.mark.parametrize("unknown", [-1, -1.0, None, "no", "", "-1", float("nan")])
def test_the_next_split_is_tested_on(unknown: object, tmp_path: Path) -> None:
    """Bug: -1 was a third class, or the data were refused; validation, which has labels, is read, and it is told."""
    source = folder(tmp_path / "set", {"train": [0, 1], "validation": [1, 0], "test": [unknown]})
    data = prepared(tmp_path / "d", source)
    assert all(text.startswith("validation") for text in texts(data, "test"))
    assert data.labels == ("0", "1")
    assert data.info.notes == (NOTE, "of the splits of set, validation is tested on; not read: test")


def test_without_another_split_a_share_is_held_out(tmp_path: Path) -> None:
    """It can also be asked for."""
    source = folder(tmp_path / "set", {"train": [0, 1], "test": [-1]})
    data = prepared(tmp_path / "d", source, validation=0.3)
    assert (data.size("train"), data.size("test")) == (7, 3)
    assert data.info.notes == (NOTE, "of the splits of set, train is read; not read: test")


@pytest.mark.parametrize(
    ("train", "test"), [([-1, 1], [-1]), ([0, 1], [-1, 1]), (["-1", "1"], [-1])], ids=["a class", "some", "words"]
)
def test_a_class_called_minus_one_is_tested_on(train: list[Any], test: list[Any], tmp_path: Path) -> None:
    """Where training rows have it, or other test rows another, -1 is as good a label as any."""
    rows = folder(tmp_path / "set", {"train": train, "dev": [1], "test": test})
    source = open_source(DataRequest(source=str(rows)), TEXT.task)
    assert source.test[0].name.endswith("test.jsonl")


def test_a_test_split_without_rows_is_refused(tmp_path: Path) -> None:
    """An empty file has no labels either, and is no reason to test on another."""
    source = folder(tmp_path / "set", {"train": [0, 1], "dev": [1, 0]})
    (source / "test.csv").write_text("text,label\n")
    with pytest.raises(Refused, match=r"test\.csv: no samples in it"):
        prepared(tmp_path / "d", source, TEXT)


def test_texts_to_go_on_with_need_no_labels(tmp_path: Path) -> None:
    """Where the training rows have no column of labels, the test split is tested on."""
    data = prepared(tmp_path / "d", folder(tmp_path / "set", {"train": ["no"], "test": ["no"]}), CAUSAL)
    assert data.size("test") == 10 and data.info.notes == ()


def test_models_of_tokens_are_tested_on_rows_without_labels(tmp_path: Path) -> None:
    """Bug: where only the training rows have a column of labels, which causal-lm does not read, the test split was
    left out."""
    source = folder(tmp_path / "set", {"train": [0, 1], "test": ["no"]})
    assert all(text.startswith("test") for text in texts(prepared(tmp_path / "d", source, CAUSAL), "test"))
    assert not open_source(DataRequest(source=str(source)), TEXT.task).test


def test_no_column_but_that_of_labels_is_read(tmp_path: Path) -> None:
    """Bug: every image of the training rows was read to see whether -1 is one of their labels: here none can be."""
    for split, label in (("train", 1), ("test", -1)):
        file = tmp_path / f"{split}.parquet"
        pq.write_table(pa.table({"image": [b"x" * 9] * 4, "label": [label] * 4}), file)
        images = pq.read_metadata(file).row_group(0).column(0)
        content = bytearray(file.read_bytes())
        content[4 : 4 + images.total_compressed_size] = bytes(images.total_compressed_size)
        file.write_bytes(content)
    source = open_source(DataRequest(source=str(tmp_path)), "image-classification")
    assert not source.test
    with pytest.raises(Refused, match=r"train\.parquet: cannot be read after row 0"):
        list(source.train[0].rows())


def test_labels_of_training_rows_are_looked_at_once() -> None:
    """Bug: they were read once for each split whose labels are all -1."""
    read = []

    class Counted(InMemoryTable):
        def rows(self) -> Iterator[tuple[int, Mapping[str, Any]]]:
            read.append(self.name)
            return super().rows()

    labels = {"train": 1, "val": -1, "test": -1}
    tables = {name: (Counted(name=name, values=({"label": label},)),) for name, label in labels.items()}
    assert labelled_splits(labels, tables.__getitem__, "label", TEXT.task)[:2] == ("", "")
    assert sorted(read) == ["test", "train", "val"]


def test_a_test_split_of_the_hub_without_labels_is_not_tested_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """GLUE on the hub is as GLUE in a folder."""
    labels = {"train": (0, 1), "validation": (1, 0), "test": (-1, -1)}

    class Split(list[dict[str, Any]]):
        column_names, features = ("text", "label"), None

        def select_columns(self, names: list[str]) -> "Split":
            return Split({name: row[name] for name in names} for row in self)

    splits = {
        name: Split({"text": f"{name} {n}", "label": two[n % 2]} for n in range(10)) for name, two in labels.items()
    }
    package = SimpleNamespace(load_dataset=lambda *name, **options: splits)
    monkeypatch.setitem(sys.modules, "datasets", package)
    source = open_source(DataRequest(source="owner/glue"), TEXT.task)
    assert source.test[0].name == "owner/glue (validation)"
    assert source.notes == (NOTE, "of the splits of owner/glue, validation is tested on; not read: test")
