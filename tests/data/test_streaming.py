"""Sets of the hub that are streamed: only the rows that are needed, always the same ones, and none kept on disk."""

import sys
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from fleetune.contracts.run_config import DataRequest
from fleetune.data.sources import content_digest
from fleetune.errors import Refused, TryAgain
from tests.support.data.samples import CAUSAL, json_lines, prepared, texts

COMMIT = "c" * 40
SOURCE = f"owner/endless@{COMMIT}"
ENDLESS = 10**9


@dataclass
class Stream:
    """Stand-in for the parts of `datasets.IterableDataset` that this project uses: rows that say their number."""

    rows: int = ENDLESS
    columns: tuple[str, ...] | None = ("text", "label")
    read: list[int] = field(default_factory=list)
    """Rows read, by pass."""
    first: int = 0
    lost: int = 0
    """Rows that are missing in every pass but the first."""

    @property
    def column_names(self) -> list[str] | None:
        """None where the files tell no schema."""
        return None if self.columns is None else list(self.columns)

    @property
    def features(self) -> dict[str, Any] | None:
        """Types by column."""
        return None if self.columns is None else {name: SimpleNamespace() for name in self.columns}

    def shuffle(self, seed: int, buffer_size: int) -> "Stream":
        """Begins elsewhere, and always there for a seed."""
        return replace(self, first=100 + seed + buffer_size - 10_000)

    def select_columns(self, names: list[str]) -> "Stream":
        """Only these, of which there must be some."""
        return replace(self, columns=tuple(names))

    def take(self, rows: int) -> "Stream":
        """At most so many rows."""
        return replace(self, rows=min(rows, self.rows))

    def __iter__(self) -> Iterator[dict[str, str]]:
        again = bool(self.read)
        self.read.append(0)
        for number in islice(range(self.first, ENDLESS), self.rows - (self.lost if again else 0)):
            self.read[-1] += 1
            row = {"text": f"text {number}", "label": ("pear", "apple")[number % 2]}
            yield {name: row[name] for name in self.columns or row}


@pytest.fixture
def splits(monkeypatch: pytest.MonkeyPatch) -> dict[str, Stream]:
    """Splits of a fake hub; `datasets` must be asked to stream them."""
    found = {"train": Stream()}
    package = ModuleType("datasets")

    def load_dataset(name: str, config: str | None, revision: str, **options: bool) -> dict[str, Stream]:
        assert (name, config, revision) == ("owner/endless", None, COMMIT)
        assert options == {"streaming": True, "trust_remote_code": False}
        return found

    package.load_dataset, package.__version__ = load_dataset, "4"  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "datasets", package)
    return found


def test_only_the_rows_that_are_needed_are_read(tmp_path: Path, splits: dict[str, Stream]) -> None:
    """30 to train on and 10 to test on, a quarter held out, are 41 rows of an endless set, in each pass."""
    data = prepared(tmp_path / "d", SOURCE, streaming=True, train_samples=30, test_samples=10, validation=0.25)
    assert (data.size("train"), data.size("test")) == (30, 10)
    assert splits["train"].read == [41, 41]
    assert data.labels == ("apple", "pear")
    numbers = {int(text.split()[1]) for name in ("train", "test") for text in texts(data, name)}
    assert len(numbers) == 40 and numbers <= set(range(100, 141))


def test_a_split_to_test_on_is_streamed_as_far_as_asked(tmp_path: Path, splits: dict[str, Stream]) -> None:
    """Of a split of its own, just the rows that are tested on are read."""
    splits["validation"] = Stream()
    data = prepared(tmp_path / "d", SOURCE, streaming=True, train_samples=30, test_samples=7)
    assert (data.size("train"), data.size("test")) == (30, 7)
    assert max(splits["train"].read) == 30 and max(splits["validation"].read) == 7


@pytest.mark.parametrize("split", ["train", "test"])
def test_a_stream_that_is_only_tested_on(split: str, tmp_path: Path, splits: dict[str, Stream]) -> None:
    """As many rows are scored as were asked for, of the test split where there is one."""
    splits.setdefault(split, Stream())
    asked: dict[str, Any] = {"streaming": True, "train_samples": 3, "test_samples": 20, "validation": 1.0}
    data = prepared(tmp_path / "d", SOURCE, CAUSAL, **asked)
    assert (data.size("train"), data.size("test")) == (3, 20)
    assert max(splits[split].read) == 20


def test_columns_without_a_schema_are_those_of_the_first_row(tmp_path: Path, splits: dict[str, Stream]) -> None:
    """Streams of JSON tell no columns before they are read."""
    splits["train"] = Stream(columns=None)
    data = prepared(tmp_path / "d", SOURCE, CAUSAL, streaming=True, train_samples=8, test_samples=2)
    assert (data.size("train"), data.size("test")) == (8, 2)


def test_rows_that_are_gone_in_the_second_pass_are_missed(tmp_path: Path, splits: dict[str, Stream]) -> None:
    """What was counted and cannot be read again is no row of zeros in the arrays; nothing is left on disk."""
    splits["train"] = Stream(lost=1)
    with pytest.raises(TryAgain, match="had 41 rows or more when they were counted, and 40 when they were read"):
        prepared(tmp_path / "d", SOURCE, streaming=True, train_samples=30, test_samples=10, validation=0.25)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("splits")
def test_the_digest_is_that_of_the_commit_and_the_rows() -> None:
    """Nothing is downloaded for it; without a commit nobody could say which rows they were."""
    asked = DataRequest(source=SOURCE, streaming=True, train_samples=30, test_samples=10)
    digests = {
        content_digest(replace(asked, **changes))
        for changes in ({}, {"train_samples": 31}, {"source": SOURCE.replace("c", "d")}, {})
    }
    assert len(digests) == 3
    with pytest.raises(TryAgain, match="the hub does not tell the commit of 'owner/endless'.*owner/endless@COMMIT"):
        content_digest(replace(asked, source="owner/endless"))


def test_a_stream_needs_its_end_and_a_hub(tmp_path: Path) -> None:
    """Without the number of rows it would never end; files are read row by row anyway."""
    with pytest.raises(Refused, match=r"give data\.train_samples and data\.test_samples"):
        DataRequest(source=SOURCE, streaming=True, train_samples=3)
    file = json_lines(tmp_path / "rows.jsonl", [{"text": "a", "label": "b"}])
    for source in (file, "digits"):
        with pytest.raises(Refused, match=r"is read row by row anyway; leave data\.streaming out"):
            prepared(tmp_path / "d", source, streaming=True, train_samples=1, test_samples=1)
