"""Data sets by name: scikit-learn's digits, texts from Python's standard library, and those of the Hugging Face hub.

Data sets of the hub are loaded through the optional `datasets` package.
"""

import ast
import functools
import hashlib
import importlib
import math
import re
import sysconfig
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fleetune.contracts.run_config import DataRequest
from fleetune.data.class_features import loaded_names
from fleetune.data.labelled_split import labelled_splits
from fleetune.data.public_words import Told
from fleetune.data.splits import TEST_NAMES, TRAIN, split_names, unread_notes
from fleetune.data.tables import DataSource, InMemoryTable, without_nulls
from fleetune.errors import TryAgain, first_line
from fleetune.formatting import shortlist
from fleetune.hub import COMMIT, DATASET, HubRefusal, HubSilence, commit_of


def digits() -> DataSource:
    """scikit-learn's 1797 grey 8x8 images of handwritten digits, scaled from 0..16 to 0..1; labels are 0..9."""
    from sklearn.datasets import load_digits  # takes a second to import, and only this source needs it

    found = load_digits()
    images = np.asarray(found.images, dtype=np.float64) / 16.0
    rows = tuple({"image": image, "label": int(label)} for image, label in zip(images, found.target, strict=True))
    return DataSource(train=(InMemoryTable(name="digits", values=rows),))


SKIPPED = frozenset({"test", "tests", "idle_test", "site-packages", "dist-packages", "__pycache__", "_bundled"})
PACKAGED_APART = frozenset({"distutils", "idlelib", "lib2to3", "tkinter", "turtle", "turtledemo", "ensurepip"})
"""Packages excluded from the docstrings, because many distributions ship Python without them."""
CLASSES = 10
MIN_WORDS = 5


def stdlib_files() -> tuple[tuple[str, Path], ...]:
    """(relative name, file) of every source file of the standard library except its tests, sorted by name."""
    root = Path(sysconfig.get_paths()["stdlib"])
    found = []
    for path in root.rglob("*.py"):
        parts = path.relative_to(root).parts
        if not SKIPPED.intersection(parts) and not parts[0].startswith("config-"):
            found.append(("/".join(parts), path))
    return tuple(sorted(found))


def docstrings() -> DataSource:
    """Docstrings of public classes and functions; the label is the top-level package or module that defines them.

    Includes the CLASSES packages with the most docstrings. White space is normalised. The names of these packages are
    removed from all texts, so that no text contains its label. A duplicate within one package is kept once; a text
    that occurs in two packages is dropped.
    """
    found = [(package, text) for package, text in _docstrings() if len(text.split()) >= MIN_WORDS]
    counts = Counter(package for package, _ in dict.fromkeys(found))
    ranked = sorted(counts, key=lambda package: (-counts[package], package))
    packages = frozenset(ranked[:CLASSES])
    names = re.compile(r"\b(" + "|".join(sorted(packages)) + r")\b", re.IGNORECASE)
    owners: dict[str, set[str]] = {}
    for package, text in found:
        if package in packages:
            stripped = " ".join(names.sub(" ", text).split())
            if len(stripped.split()) >= MIN_WORDS:
                owners.setdefault(stripped, set()).add(package)
    rows = tuple({"text": text, "label": min(own)} for text, own in owners.items() if len(own) == 1)
    return DataSource(train=(InMemoryTable(name="docstrings", values=rows),))


def stdlib_sources() -> DataSource:
    """Every source file of the standard library as one document; files that differ only in white space count once."""
    documents: dict[str, str] = {}
    for _, path in stdlib_files():
        text = path.read_text(encoding="utf-8", errors="replace")
        if text.strip():
            documents.setdefault(" ".join(text.split()), text)
    rows = tuple({"text": text} for text in documents.values())
    return DataSource(train=(InMemoryTable(name="stdlib-sources", values=rows, row_noun="file"),), packed=True)


@functools.cache
def _docstrings() -> tuple[tuple[str, str], ...]:
    """(top-level name, docstring with white space normalised), in order of file and line; parsing takes seconds."""
    return tuple(_parsed_docstrings())


def _parsed_docstrings() -> Iterator[tuple[str, str]]:
    for name, path in stdlib_files():
        package = name.split("/")[0].removesuffix(".py")
        if package.startswith("_") or package in PACKAGED_APART:
            continue
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # old sources contain invalid escape sequences
            tree = ast.parse(path.read_bytes())
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) and node.name[0] != "_":
                yield package, " ".join((ast.get_docstring(node) or "").split())


HUB_NAME = re.compile(r"(?P<name>\w[\w.-]*(/\w[\w.-]*)?)(:(?P<config>[\w.-]+))?(@(?P<revision>[\w./-]+))?")
"""OWNER/NAME, optionally with :CONFIG and @REVISION."""
CONFIGS = re.compile(r"Config name is missing.*available configs: \[(.+?)\]", re.DOTALL)
"""What the package says where a name has several configurations."""
SHUFFLED_ROWS = 10_000
"""Rows that a stream is shuffled among, since the first ones of a set are often of one kind."""


@dataclass(frozen=True, kw_only=True)
class HubTable:
    """One split of a `datasets` data set, backed by Arrow files in that package's cache, or a stream from the hub."""

    name: str
    dataset: Any
    row_noun: str = "row"

    @property
    def columns(self) -> tuple[str, ...]:
        """Column names in the data set's order; a stream without a schema has those of its first row."""
        return tuple(self.dataset.column_names or next(iter(self.dataset), ()))

    def class_names(self, column: str) -> tuple[str, ...]:
        """Class names of a ClassLabel feature, or of a list of them; empty for other columns."""
        return loaded_names((self.dataset.features or {}).get(column))

    def rows(self) -> Iterator[tuple[int, Mapping[str, Any]]]:
        """Yield (number from 1, column -> value) of every row; keys of null are left out, as of other Arrow files."""
        for number, values in enumerate(self.dataset, start=1):
            yield number, without_nulls(values)


def hub_source(request: DataRequest, task: str, needs_train: bool = True) -> DataSource:
    """Open the data set's train split and those that are held out; a note names the others.

    Unless `needs_train`, a test split is enough.
    """
    given = _load(request.source, request.streaming)
    splits = _by_words(given)
    if TRAIN not in splits and (needs_train or splits.keys().isdisjoint(TEST_NAMES)):
        raise Told(
            "data: {source} has the splits {}; one must be called train, or be the only one with this word in its "
            "name. Else download the set, list what trains in data.files, and name what is tested on in "
            "data.validation",
            ", ".join(given),
            source=request.source,
        )
    test, chooses, unlabelled_notes = labelled_splits(
        splits, lambda split: (_first_labels(request, split, splits[split]),), request.label_column, task
    )
    train_rows, test_rows = streamed_rows(request, bool(test)) if request.streaming else (None, None)
    return DataSource(
        train=(_hub_table(f"{request.source} (train)", splits[TRAIN], train_rows),) if TRAIN in splits else (),
        test=(_hub_table(f"{request.source} ({test})", splits[test], test_rows),) if test else (),
        validation=(_hub_table(f"{request.source} ({chooses})", splits[chooses], test_rows),) if chooses else (),
        text_column=request.text_column,
        image_column=request.image_column,
        label_column=request.label_column,
        target_column=request.target_column,
        split_notes=(*unlabelled_notes, *unread_notes(request.source, splits, test, chooses)),
    )


def _by_words(splits: Mapping[str, Any]) -> Mapping[str, Any]:
    """The splits, of which the only one whose name has the word train is called so, and alike for each test split."""
    called = dict[str, str]()
    for word in (TRAIN, *TEST_NAMES):
        named = [name for name in splits if split_names(name) == {word}]
        if word not in splits and len(named) == 1:
            called[named[0]] = word
    return {called.get(name, name): split for name, split in splits.items()}


def _first_labels(request: DataRequest, split: str, dataset: Any) -> HubTable:
    """The labels of a split, of a stream those of its first rows."""
    if request.label_column in (dataset.column_names or ()):
        dataset = dataset.select_columns([request.label_column])  # else images of each row are decoded
    most = request.train_samples if split == TRAIN else request.test_samples
    return HubTable(name=f"{request.source} ({split})", dataset=dataset.take(most) if request.streaming else dataset)


def streamed_rows(request: DataRequest, has_test: bool) -> tuple[int, int]:
    """Rows of the train and of the test split that a stream must give."""
    assert request.train_samples is not None and request.test_samples is not None
    if request.only_tested:
        return max(request.train_samples, request.test_samples), request.test_samples
    if has_test:
        return request.train_samples, request.test_samples
    share = request.held_out_share
    return math.ceil(max(request.train_samples / (1 - share), request.test_samples / share)) + 1, 0


def _hub_table(name: str, dataset: Any, streamed: int | None) -> HubTable:
    """A split; of one that is streamed, so many rows of a shuffle that is the same for every run."""
    if streamed is None:
        return HubTable(name=name, dataset=dataset)
    return HubTable(name=name, dataset=dataset.shuffle(seed=0, buffer_size=SHUFFLED_ROWS).take(streamed))


def pinned_source(source: str) -> str:
    """Pin a hub name to its current commit; without the hub (HF_HUB_OFFLINE), to that of the cache, if it has one.

    Raises Refused for what the hub refuses, and TryAgain where it does not answer: the cache may be older.
    """
    found = HUB_NAME.fullmatch(source)
    assert found is not None, source
    commit = _commit(found["name"], found["revision"] or "main")
    config = f":{found['config']}" if found["config"] else ""
    return f"{found['name']}{config}@{commit}" if commit else source


def _commit(name: str, revision: str) -> str:
    """Commit of a branch or tag; empty if the hub has none, or is not to be asked and the local cache has none."""
    try:
        return commit_of(DATASET, name, revision)
    except HubRefusal as error:
        raise Told("data: {}@{} cannot be read from the hub ({})", name, revision, str(error)) from None
    except HubSilence as error:
        older = f", or take what the cache has: {name}@{error.cached}" if error.cached else ""
        raise TryAgain(
            f"data: the hub does not tell the commit of {name}@{revision} ({error}); try again, give a commit{older}"
        ) from None


def hub_digest(request: DataRequest) -> str:
    """sha256 (hex) over the Arrow files that a hub name resolves to in the local cache.

    Of a stream: over the name with its commit, and the number of rows. TryAgain if the hub does not tell the commit.
    """
    source = request.source
    if request.streaming:
        found = HUB_NAME.fullmatch(source)
        if found is None or not COMMIT.fullmatch(found["revision"] or ""):
            raise TryAgain(
                f"data: the hub does not tell the commit of {source!r}, whose rows are to be streamed; try again, or "
                f"give it: {source.split('@')[0]}@COMMIT"
            )
        texts = (
            source,
            f"{request.train_samples} {request.test_samples} {request.held_out_share}",
            _datasets(source).__version__,
        )
        return hashlib.sha256("\0".join(texts).encode()).hexdigest()
    total = hashlib.sha256(source.encode())
    splits = _load(source, streaming=False)
    for name in sorted(splits):
        total.update(f"\0{name}\0".encode())
        for entry in splits[name].cache_files:
            with Path(entry["filename"]).open("rb") as file:
                total.update(hashlib.file_digest(file, "sha256").digest())
    return total.hexdigest()


def _datasets(source: str) -> Any:
    try:
        return importlib.import_module("datasets")
    except ImportError:
        raise Told(
            "data: {source!r} is not a local file or folder, and loading it from the Hugging Face hub needs the "
            "package datasets; run `pip install 'fleetune[hub]'`",
            source=source,
        ) from None


def _load(source: str, streaming: bool) -> Mapping[str, Any]:
    datasets = _datasets(source)
    found = HUB_NAME.fullmatch(source)
    assert found is not None, source  # the caller matched it
    try:
        splits = datasets.load_dataset(
            found["name"],
            found["config"],
            revision=found["revision"],
            trust_remote_code=False,
            **({"streaming": True} if streaming else {}),
        )
    except (FileNotFoundError, ValueError) as error:
        if among := CONFIGS.search(str(error)):
            raise Told(
                "data: {source!r} has several configurations; name one, such as {name}:{config} ({})",
                shortlist(names := re.findall(r"'(.+?)'", among[1]), most=20),
                source=source,
                name=found["name"],
                config=names[0],
            ) from None
        raise Told("data: {source!r} cannot be loaded from the hub ({})", first_line(error), source=source) from None
    except (ConnectionError, OSError) as error:
        raise TryAgain(f"data: the hub did not give {source!r} ({first_line(error)}); try again") from None
    assert isinstance(splits, Mapping)
    return splits
