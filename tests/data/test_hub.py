"""Data sets in Hugging Face's formats: folders without the `datasets` package, hub names with it."""

import json
import sys
from collections.abc import Iterator
from copy import copy
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from huggingface_hub import HfApi, constants
from huggingface_hub.errors import HfHubHTTPError

from fleetune.contracts.run_config import DataRequest
from fleetune.data.named_datasets import HubTable
from fleetune.data.sources import content_digest, pinned_request, validate_data
from fleetune.errors import Refused, TryAgain
from tests.support.data.samples import FRUITS, TEXT, json_lines, prepared, texts, whole

NAMES = ["pear", "apple"]
FEATURES = {"text": {"dtype": "string", "_type": "Value"}, "label": {"names": NAMES, "_type": "ClassLabel"}}


def table(rows: list[dict[str, str]]) -> pa.Table:
    """Rows as `datasets` stores them: labels by number, their names in the schema."""
    plain = pa.Table.from_pylist([{"text": row["text"], "label": NAMES.index(row["label"])} for row in rows])
    return plain.replace_schema_metadata({"huggingface": json.dumps({"info": {"features": FEATURES}})})


def save_to_disk(folder: Path, rows: list[dict[str, str]], files: int = 2) -> None:
    """The layout of one split by save_to_disk: Arrow streams listed in state.json."""
    folder.mkdir(parents=True)
    names = [f"data-{n:05}-of-{files:05}.arrow" for n in range(files)]
    for n, name in enumerate(names):
        part = table(rows[n::files])
        with pa.OSFile(str(folder / name), "wb") as out, pa.ipc.new_stream(out, part.schema) as stream:
            stream.write_table(part)
    (folder / "state.json").write_text(json.dumps({"_data_files": [{"filename": name} for name in names]}))


@pytest.mark.parametrize(
    "feature",
    [
        {"feature": {"names": NAMES, "_type": "ClassLabel"}, "length": -1, "_type": "Sequence"},
        {"feature": {"names": NAMES, "_type": "ClassLabel"}, "_type": "List"},
        {"feature": {"names": NAMES, "_type": "ClassLabel"}, "_type": "LargeList"},
        [{"names": NAMES, "_type": "ClassLabel"}],
    ],
    ids=["Sequence", "List", "LargeList", "list"],
)
def test_classes_in_lists_keep_their_names(feature: Any, tmp_path: Path) -> None:
    """Bug: rows with several labels, stored by number, had the numbers as names; a class that no row has is there."""
    rows = [{"text": f"t{n}", "label": [[0], [0, 1], []][n % 3]} for n in range(12)]
    noted = {"info": {"features": {**FEATURES, "label": feature}}}
    plain = pa.Table.from_pylist(rows).replace_schema_metadata({"huggingface": json.dumps(noted)})
    pq.write_table(plain, tmp_path / "rows.parquet")
    spec = replace(TEXT, task="sequence-multi-label-classification")
    data = prepared(tmp_path / "d", tmp_path / "rows.parquet", spec)
    assert data.labels == ("pear", "apple")
    both = np.concatenate([whole(data, split)["labels"] for split in ("train", "test")])
    assert both.sum(axis=0).tolist() == [8, 4]
    pq.write_table(plain.set_column(1, "label", pa.array([[0, 7]] * 12)), tmp_path / "rows.parquet")
    with pytest.raises(Refused, match="label 7 in column 'label' is not one of the 2 named ones"):
        prepared(tmp_path / "other", tmp_path / "rows.parquet", spec)


def test_classes_in_lists_from_the_hub_keep_their_names() -> None:
    """The same holds for features that the package has loaded, in the classes of each of its versions."""
    label = SimpleNamespace(names=NAMES)
    lists = [type(name, (), {"feature": label})() for name in ("Sequence", "List", "LargeList")]
    for feature in (label, [label], *lists):
        assert HubTable(name="x", dataset=SimpleNamespace(features={"label": feature})).class_names("label") == (
            "pear",
            "apple",
        )
    assert HubTable(name="x", dataset=SimpleNamespace(features=None)).class_names("label") == ()


def test_saved_dataset_dict_is_read(tmp_path: Path) -> None:
    """Splits, files and class names come from the folder; names keep the data set's order."""
    folder = tmp_path / "set"
    save_to_disk(folder / "train", FRUITS[:14])
    save_to_disk(folder / "test", FRUITS[14:], files=1)
    (folder / "dataset_dict.json").write_text('{"splits": ["train", "test"]}')
    data = prepared(tmp_path / "d", folder)
    assert data.labels == ("pear", "apple")
    assert {*texts(data, "test")} == {row["text"] for row in FRUITS[14:]}
    for text, label in zip(texts(data, "train"), whole(data, "train")["labels"], strict=True):
        assert text.startswith(data.labels[label])


def test_saved_single_dataset_is_held_out(tmp_path: Path) -> None:
    """A folder with a single split is split by test_fraction."""
    save_to_disk(tmp_path / "set", FRUITS)
    data = prepared(tmp_path / "d", tmp_path / "set", test_fraction=0.3)
    assert (data.size("train"), data.size("test")) == (14, 6)


@pytest.mark.parametrize("key", ["_indices_data_files", "_indices_files"])
def test_a_saved_choice_of_rows_is_refused(key: str, tmp_path: Path) -> None:
    """Bug: of a set that older versions saved with the numbers of its rows, all rows of the files were read."""
    save_to_disk(tmp_path / "set", FRUITS)
    state = json.loads((tmp_path / "set" / "state.json").read_text())
    for chosen in ([], None, [{"filename": "indices.arrow"}]):
        (tmp_path / "set" / "state.json").write_text(json.dumps({**state, key: chosen}))
        if not chosen:
            validate_data(DataRequest(source=str(tmp_path / "set")), "sequence-classification")
    with pytest.raises(Refused, match=r"set: only some rows .*; call its flatten_indices\(\) and save it again"):
        validate_data(DataRequest(source=str(tmp_path / "set")), "sequence-classification")


def test_parquet_clone_is_read(tmp_path: Path) -> None:
    """The data/ folder of a hub repository needs no package; class names come along."""
    (tmp_path / "set" / "data").mkdir(parents=True)
    (tmp_path / "set" / "README.md").write_text("A card.")
    for split, rows in (("train", FRUITS[:14]), ("test", FRUITS[14:])):
        pq.write_table(table(rows), tmp_path / "set" / "data" / f"{split}-00000-of-00001.parquet")
    data = prepared(tmp_path / "d", tmp_path / "set")
    assert data.labels == ("pear", "apple")
    assert data.size("test") == 6


def test_label_without_a_name_is_refused(tmp_path: Path) -> None:
    """-1 marks unlabelled test rows on the hub: they cannot be scored."""
    rows = table(FRUITS).to_pylist()
    rows[3]["label"] = -1
    broken = pa.Table.from_pylist(rows).replace_schema_metadata(table(FRUITS).schema.metadata)
    pq.write_table(broken, tmp_path / "train.parquet")
    with pytest.raises(Refused, match="label -1 in column 'label' is not one of the 2 named ones"):
        prepared(tmp_path / "d", tmp_path / "train.parquet")


def test_half_a_saved_folder_is_refused(tmp_path: Path) -> None:
    """The refusal names a missing file, a truncated Arrow file, and a state file without its list."""
    save_to_disk(tmp_path / "set", FRUITS, files=1)
    arrow = tmp_path / "set" / "data-00000-of-00001.arrow"
    arrow.write_bytes(arrow.read_bytes()[:100])
    with pytest.raises(Refused, match=r"data-00000-of-00001\.arrow"):
        prepared(tmp_path / "d", tmp_path / "set")
    arrow.unlink()
    with pytest.raises(Refused, match=r"data-00000-of-00001\.arrow"):
        prepared(tmp_path / "d", tmp_path / "set")
    (tmp_path / "set" / "state.json").write_text("{}")
    with pytest.raises(Refused, match="not a whole data set as save_to_disk writes it"):
        prepared(tmp_path / "d", tmp_path / "set")


class Split:
    """Stand-in for the parts of `datasets.Dataset` that this project uses."""

    def __init__(self, rows: list[dict[str, str]], cache: Path) -> None:
        self.rows = table(rows).to_pylist()
        self.column_names = ["text", "label"]
        self.features = {"text": SimpleNamespace(), "label": SimpleNamespace(names=NAMES)}
        self.cache_files = [{"filename": str(cache)}]

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return iter(self.rows)

    def select_columns(self, names: list[str]) -> "Split":
        """Only these."""
        narrow = copy(self)
        narrow.rows, narrow.column_names = [{name: row[name] for name in names} for row in self.rows], names
        return narrow


@pytest.fixture
def asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """Fake `datasets` package that knows the set owner/fruits; returns the list of its calls."""
    calls: list[tuple[Any, ...]] = []
    package = ModuleType("datasets")
    (tmp_path / "cached.arrow").write_bytes(b"rows")

    def load_dataset(name: str, config: str | None, revision: str | None, trust_remote_code: bool) -> dict[str, Split]:
        assert not trust_remote_code
        calls.append((name, config, revision))
        if name == "owner/down":
            raise ConnectionError("no route\nto the hub")
        if name == "owner/several":
            raise ValueError(
                "Config name is missing.\nPlease pick one among the available configs: ['de', 'en']\nExample of usage:"
                "\n\t`load_dataset('owner/several', 'de')`"
            )
        if name != "owner/fruits":
            raise FileNotFoundError(f"no data set {name}")
        cache = tmp_path / "cached.arrow"
        return {"train": Split(FRUITS[:14], cache), "validation": Split(FRUITS[14:], cache)}

    package.load_dataset = load_dataset  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "datasets", package)
    return calls


def test_hub_name_is_loaded_through_the_package(tmp_path: Path, asked: list[tuple[Any, ...]]) -> None:
    """Name, configuration and revision are passed on; validation serves as test; class names are kept."""
    data = prepared(tmp_path / "d", "owner/fruits:small@v1")
    assert asked[0] == ("owner/fruits", "small", "v1")
    assert data.labels == ("pear", "apple")
    assert (data.size("train"), data.size("test")) == (14, 6)


def test_any_usual_name_of_a_test_split_serves_and_others_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bug: a split called dev was ignored, and a share of train was tested on; splits that are not read are named."""
    cache = tmp_path / "cached.arrow"
    cache.write_bytes(b"rows")
    splits = {name: Split(rows, cache) for name, rows in (("train", FRUITS[:14]), ("dev", FRUITS[14:]), ("more", []))}
    package = SimpleNamespace(load_dataset=lambda *name, **options: splits)
    monkeypatch.setitem(sys.modules, "datasets", package)
    data = prepared(tmp_path / "d", "owner/fruits")
    assert (data.size("train"), data.size("test")) == (14, 6)
    assert data.info.notes == ("of the splits of owner/fruits, dev is tested on; not read: more",)


def test_the_only_split_that_may_train_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bug: a set whose only training split has a longer name was refused; of several, none is taken by chance."""
    cache = tmp_path / "cached.arrow"
    cache.write_bytes(b"rows")
    splits = {"train_sft": Split(FRUITS[:14], cache), "test": Split(FRUITS[14:], cache)}
    monkeypatch.setitem(sys.modules, "datasets", SimpleNamespace(load_dataset=lambda *name, **options: splits))
    data = prepared(tmp_path / "d", "owner/fruits")
    assert (data.size("train"), data.size("test"), data.info.notes) == (14, 6, ())
    for names in (["train_sft", "train_gen", "test_sft"], ["all", "test"]):
        monkeypatch.setitem(
            sys.modules, "datasets", SimpleNamespace(load_dataset=lambda *_, names=names, **__: dict.fromkeys(names))
        )
        with pytest.raises(
            Refused, match=f"has the splits {', '.join(names)}; one must be .* list what trains in data.f"
        ):
            prepared(tmp_path / "e", "owner/fruits")


@pytest.mark.parametrize(
    ("names", "sizes", "said"),
    [
        (("train_sft", "test_sft"), (14, 6), ""),
        (("train", "validation_sft"), (14, 6), ""),
        (("train", "validation", "test"), (14, 6), ""),
        (("train_sft", "test_sft", "test_gen"), (11, 3), "train is read; not read: test_sft, test_gen"),
    ],
)
def test_the_only_split_that_may_be_tested_on_is_taken(
    names: tuple[str, ...], sizes: tuple[int, int], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bug: a test split with a longer name was not read, though a folder of the same files was tested on it; of
    several, none is taken by chance."""
    cache = tmp_path / "cached.arrow"
    cache.write_bytes(b"rows")
    splits = {name: Split(FRUITS[:14] if number == 0 else FRUITS[14:], cache) for number, name in enumerate(names)}
    monkeypatch.setitem(sys.modules, "datasets", SimpleNamespace(load_dataset=lambda *name, **options: splits))
    data = prepared(tmp_path / "d", "owner/fruits")
    assert (data.size("train"), data.size("test")) == sizes
    assert data.info.notes == ((f"of the splits of owner/fruits, {said}",) if said else ())


@pytest.mark.parametrize("name", ["test", "validation_sft"])
def test_a_set_that_only_has_a_test_split_is_tested_on(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bug: by its name it was refused, unlike its clone; a training on it still is, and so is one without either."""
    cache = tmp_path / "cached.arrow"
    cache.write_bytes(b"rows")
    splits = {name: Split(FRUITS, cache)}
    monkeypatch.setitem(sys.modules, "datasets", SimpleNamespace(load_dataset=lambda *name, **options: splits))
    assert prepared(tmp_path / "d", "owner/fruits", validation=1.0).size("test") == 20
    beside = prepared(tmp_path / "e", json_lines(tmp_path / "own.jsonl", FRUITS[:9]), validation="owner/fruits")
    assert (beside.size("train"), beside.size("test")) == (9, 20)
    with pytest.raises(Refused, match=f"has the splits {name}; one must be called train"):
        prepared(tmp_path / "f", "owner/fruits")
    splits["all"] = splits.pop(name)
    with pytest.raises(Refused, match="has the splits all; one must be called train"):
        prepared(tmp_path / "g", "owner/fruits", validation=1.0)


@pytest.mark.usefixtures("asked")
def test_hub_digest_follows_the_cached_bytes(tmp_path: Path) -> None:
    """The digest covers the downloaded bytes, so a new revision under the same name changes it."""
    request = DataRequest(source="owner/fruits")
    before = content_digest(request)
    assert content_digest(request) == before
    (tmp_path / "cached.arrow").write_bytes(b"Rows")
    assert content_digest(request) != before


def test_a_hub_name_is_pinned_to_its_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Regression: training used other rows when a branch moved after hashing; unknown names stay unpinned."""
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    refs = tmp_path / "datasets--owner--fruits" / "refs"
    refs.mkdir(parents=True)
    (refs / "main").write_text("a" * 40)
    (refs / "v1").write_text("b" * 40)
    for source, pinned in (
        ("owner/fruits", f"owner/fruits@{'a' * 40}"),
        ("owner/fruits:small@v1", f"owner/fruits:small@{'b' * 40}"),
        (f"owner/fruits@{'c' * 40}", f"owner/fruits@{'c' * 40}"),
        ("owner/unknown", "owner/unknown"),
        ("digits", "digits"),
        (str(tmp_path), str(tmp_path)),
    ):
        assert pinned_request(DataRequest(source=source)).source == pinned


@pytest.mark.parametrize(
    ("fails", "kind", "says"),
    [
        (ConnectionError("no route\nto host"), TryAgain, rf"commit of owner/fruits@main \(no route\); .*@{'a' * 40}$"),
        (TimeoutError(), TryAgain, r"commit of owner/fruits@main \(TimeoutError\)"),
        (503, TryAgain, r"commit of owner/fruits@main \(busy\)"),
        (403, Refused, r"owner/fruits@main cannot be read from the hub \(busy\)"),
        (404, Refused, r"owner/fruits@main cannot be read from the hub \(busy\)"),
    ],
)
def test_the_commit_of_the_cache_is_not_taken_for_that_of_the_hub(
    fails: Exception | int, kind: type[Exception], says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the hub does not answer, what the cache has may be older: it is named, and not used."""
    refs = tmp_path / "datasets--owner--fruits" / "refs"
    refs.mkdir(parents=True)
    (refs / "main").write_text("a" * 40)
    response: Any = SimpleNamespace(status_code=fails, headers={}, request=None)
    error = HfHubHTTPError("busy", response=response) if isinstance(fails, int) else fails

    def dataset_info(*asked: object, **options: object) -> None:
        raise error

    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(HfApi, "dataset_info", dataset_info)
    with pytest.raises(kind, match=says):
        pinned_request(DataRequest(source="owner/fruits"))


@pytest.mark.usefixtures("asked")
def test_hub_troubles_are_told_apart(tmp_path: Path) -> None:
    """An unknown name is refused; an unreachable hub raises TryAgain. Bug: of a set with several configurations it was
    said that the name of one is missing, and neither which there are nor how to give it."""
    with pytest.raises(Refused, match=r"has several configurations; name one, such as owner/several:de \(de, en\)"):
        prepared(tmp_path / "d", "owner/several")
    with pytest.raises(Refused, match=r"'owner/unknown' cannot be loaded from the hub \(no data set owner/unknown\)"):
        prepared(tmp_path / "d", "owner/unknown")
    with pytest.raises(TryAgain, match=r"\(no route\); try again"):
        prepared(tmp_path / "d", "owner/down")


def test_without_the_package_the_way_out_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A hub name without the `datasets` package names the package to install."""
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(Refused, match=r"pip install 'fleetune\[hub\]'"):
        prepared(tmp_path / "d", "owner/fruits")
