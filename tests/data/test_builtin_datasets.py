"""The built-in data sets."""

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.datasets import load_digits

from fleetune.contracts.input_spec import InputSpec
from fleetune.data import named_datasets
from fleetune.data.prepared_data import PreparedData
from fleetune.errors import Refused
from tests.support.data.samples import CAUSAL, IMAGES, TEXT, fake_stdlib, prepared, texts, whole


@pytest.fixture(scope="module")
def docstrings(tmp_path_factory: pytest.TempPathFactory) -> PreparedData:
    """The whole docstring set, long enough that few texts are cut."""
    spec = InputSpec(task="sequence-classification")
    return prepared(tmp_path_factory.mktemp("data") / "docstrings", "docstrings", spec, max_length=512)


def test_digits_keep_every_image_and_their_balance(tmp_path: Path) -> None:
    """Train and test together hold each of the 1797 digits once, with its own label."""
    data = prepared(tmp_path / "d", "digits", IMAGES)
    parts = [whole(data, split) for split in ("train", "test")]
    labels = np.concatenate([part["labels"] for part in parts])
    pixels = np.concatenate([part["pixel_values"] for part in parts])
    expected = load_digits()
    assert data.labels == tuple("0123456789")
    assert Counter(labels.tolist()) == Counter(expected.target.tolist())
    found = Counter((int(n), p.tobytes()) for n, p in zip(labels, pixels, strict=True))
    wanted = (expected.images / 16 - 0.5) / 0.5
    images = wanted.astype("float32")[:, None]
    assert found == Counter((int(n), p.tobytes()) for n, p in zip(expected.target, images, strict=True))
    assert abs(data.size("test") - 0.2 * 1797) < 2


def test_digits_are_sized_and_typed_for_the_model(tmp_path: Path) -> None:
    """Side, channels, precision and normalisation are the model's; grey is repeated."""
    spec = InputSpec(task="image-classification", image_size=32, precision="float64", image_std=(0.5, 0.25, 1.0))
    data = prepared(tmp_path / "d", "digits", spec, train_samples=20, test_samples=5)
    pixels = whole(data, "train")["pixel_values"]
    assert pixels.shape == (20, 3, 32, 32)
    assert pixels.dtype == np.float64
    assert np.allclose(2 * pixels[:, 0], pixels[:, 1])
    assert np.allclose(pixels[:, 0], 2 * pixels[:, 2])
    assert data.size("test") == 5


def test_no_docstring_is_in_two_splits(docstrings: PreparedData) -> None:
    """Every distinct docstring is stored exactly once, so no test sample is a training sample."""
    rows = [str(row["text"]) for table in named_datasets.docstrings().train for _, row in table.rows()]
    stored = texts(docstrings, "train") + texts(docstrings, "test")
    assert len(rows) > 1000
    assert len({" ".join(row.split()) for row in rows}) == len(rows)
    cut = [row.encode()[:510].decode(errors="ignore") for row in rows]
    assert Counter(text.rstrip("\ufffd") for text in stored) == Counter(cut)
    uncut = [{text for text in texts(docstrings, split) if len(text.encode()) < 510} for split in ("train", "test")]
    assert not uncut[0] & uncut[1]


def test_docstrings_do_not_say_their_own_answer(docstrings: PreparedData) -> None:
    """No text contains the name of a class as a word."""
    words = {word for text in texts(docstrings, "train") for word in text.lower().replace(".", " ").split()}
    assert not words & set(docstrings.labels)


def test_docstring_classes_are_common_packages(docstrings: PreparedData) -> None:
    """The classes are ten packages of every distribution, sorted, each with tens of texts."""
    assert len(docstrings.labels) == named_datasets.CLASSES
    assert {"asyncio", "email", "logging", "unittest"} <= set(docstrings.labels)
    assert list(docstrings.labels) == sorted(docstrings.labels)
    counts = Counter(whole(docstrings, "train")["labels"].tolist())
    assert min(counts.values()) >= 30


SOURCES = {
    "a.py": "one = 1\n" * 9,
    "b.py": "one  =  1\n" * 9,
    "c.py": "two = 2\n" * 7,
    "d.py": " \n",
    "e.py": "x=3\n" * 5,
}


@pytest.fixture
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A fake standard library of five files: b equals a up to white space, d is blank."""
    fake_stdlib(tmp_path / "library", SOURCES, monkeypatch)


@pytest.mark.usefixtures("library")
def test_sources_are_packed_by_file(tmp_path: Path) -> None:
    """The blocks of a split spell its files in sequence; only the last block is padded; no file is in two splits.

    Bug: files did not begin with the token that the tokenizer puts before each text.
    """
    data = prepared(tmp_path / "d", "stdlib-sources", CAUSAL, max_length=16)
    spelled = {split: "".join(texts(data, split)) for split in ("train", "test")}
    left = {"a.py", "c.py", "e.py"}
    for split, text in spelled.items():
        inside = {name for name in left if SOURCES[name] in text}
        assert len(text) == sum(len(SOURCES[name]) for name in inside)
        left -= inside
        mask = whole(data, split)["attention_mask"]
        assert mask[:-1].all()
        assert mask.sum() == len(text) + 2 * len(inside)  # each file begins with <bos> and ends with <eos>
    assert not left


@pytest.mark.usefixtures("library")
def test_a_library_that_is_only_tested_on(tmp_path: Path) -> None:
    """Bug: `evaluate` of a promoted run, which splits by content, held a share of 1 out, and ended in a traceback."""
    asked: dict[str, Any] = {"max_length": 8, "train_samples": 1, "test_samples": 2, "validation": 1.0}
    assert prepared(tmp_path / "d", "stdlib-sources", CAUSAL, split_by_content=True, **asked).size("test") == 2


@pytest.mark.usefixtures("library")
def test_limit_counts_blocks(tmp_path: Path) -> None:
    """train_samples counts blocks, all of them full."""
    data = prepared(tmp_path / "d", "stdlib-sources", CAUSAL, max_length=8, train_samples=2)
    assert data.size("train") == 2
    assert whole(data, "train")["attention_mask"].all()


def test_the_whole_library_is_read(tmp_path: Path) -> None:
    """Python's real sources fill the requested number of blocks and exclude its tests."""
    data = prepared(tmp_path / "d", "stdlib-sources", CAUSAL, train_samples=64, test_samples=16)
    assert (data.size("train"), data.size("test")) == (64, 16)
    assert data.labels == ()
    names = [name for name, _ in named_datasets.stdlib_files()]
    assert len(names) > 400
    assert not [name for name in names if "test" in name.split("/")]


@pytest.mark.parametrize(
    ("source", "spec", "says"),
    [
        ("digits", TEXT, "no column 'text'"),
        ("docstrings", IMAGES, "no column 'image'"),
        ("stdlib-sources", TEXT, "without labels"),
    ],
)
def test_set_for_another_task_is_refused(source: str, spec: InputSpec, says: str, tmp_path: Path) -> None:
    """A set that does not fit the task is refused, and leaves nothing on disk."""
    with pytest.raises(Refused, match=says):
        prepared(tmp_path / "d", source, spec)
    assert not list(tmp_path.iterdir())
