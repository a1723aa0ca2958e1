"""Data sets on the Hugging Face hub, loaded through the optional `datasets` package."""

import hashlib
import importlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fleetune.contracts.run_config import DataRequest
from fleetune.data.tables import DataSource
from fleetune.errors import Refused, TryAgain, first_line

HUB_NAME = re.compile(r"(?P<name>\w[\w.-]*(/\w[\w.-]*)?)(:(?P<config>[\w.-]+))?(@(?P<revision>[\w./-]+))?")
"""OWNER/NAME, optionally with :CONFIG and @REVISION."""
COMMIT = re.compile(r"[0-9a-f]{40}")
CHUNK_BYTES = 1 << 20


@dataclass(frozen=True, kw_only=True)
class HubTable:
    """One split of a `datasets` data set, backed by Arrow files in that package's cache."""

    name: str
    dataset: Any
    row_noun: str = "row"

    @property
    def columns(self) -> tuple[str, ...]:
        """Column names in the data set's order."""
        return tuple(self.dataset.column_names)

    def class_names(self, column: str) -> tuple[str, ...]:
        """Class names of a ClassLabel feature; empty for other columns."""
        return tuple(getattr(self.dataset.features.get(column), "names", None) or ())

    def rows(self) -> Iterator[tuple[int, Mapping[str, Any]]]:
        """Yield (number from 1, column -> value) of every row."""
        yield from enumerate(self.dataset, start=1)


def hub_source(request: DataRequest) -> DataSource:
    """Open the data set's train split and its test split (validation if there is no test)."""
    splits = _load(request.source)
    test = next((name for name in ("test", "validation") if name in splits), None)
    if "train" not in splits:
        raise Refused(f"data: {request.source} has the splits {', '.join(splits)}; one must be called train")
    return DataSource(
        train=(HubTable(name=f"{request.source} (train)", dataset=splits["train"]),),
        test=(HubTable(name=f"{request.source} ({test})", dataset=splits[test]),) if test else (),
        text_column=request.text_column,
        image_column=request.image_column,
        label_column=request.label_column,
    )


def pinned_source(source: str) -> str:
    """Pin a hub name to its current commit; unchanged if neither the hub nor the local cache knows the commit."""
    found = HUB_NAME.fullmatch(source)
    assert found is not None, source
    commit = _commit(found["name"], found["revision"] or "main")
    config = f":{found['config']}" if found["config"] else ""
    return f"{found['name']}{config}@{commit}" if commit else source


def _commit(name: str, revision: str) -> str:
    """Commit of a branch or tag; empty if neither the hub nor the local cache knows it."""
    from huggingface_hub import HfApi, constants

    if COMMIT.fullmatch(revision):
        return revision
    try:
        return str(HfApi().dataset_info(name, revision=revision).sha or "")
    except Exception:  # offline or forbidden: fall back to the local cache
        kept = Path(constants.HF_HUB_CACHE) / f"datasets--{name.replace('/', '--')}" / "refs" / revision
    try:
        return kept.read_text(encoding="utf-8").strip()
    except OSError:
        return ""


def hub_digest(source: str) -> str:
    """sha256 (hex) over the Arrow files that a hub name resolves to in the local cache."""
    total = hashlib.sha256(source.encode())
    splits = _load(source)
    for name in sorted(splits):
        total.update(f"\0{name}\0".encode())
        for entry in splits[name].cache_files:
            with Path(entry["filename"]).open("rb") as file:
                total.update(hashlib.file_digest(file, "sha256").digest())
    return total.hexdigest()


def _load(source: str) -> Mapping[str, Any]:
    try:
        datasets = importlib.import_module("datasets")
    except ImportError:
        raise Refused(
            f"data: {source!r} is not a local file or folder, and loading it from the Hugging Face hub needs the "
            "package datasets; run `pip install 'fleetune[hub]'`"
        ) from None
    found = HUB_NAME.fullmatch(source)
    assert found is not None, source  # the caller matched it
    try:
        splits = datasets.load_dataset(
            found["name"], found["config"], revision=found["revision"], trust_remote_code=False
        )
    except (FileNotFoundError, ValueError) as error:
        raise Refused(f"data: {source!r} cannot be loaded from the hub ({first_line(error)})") from None
    except (ConnectionError, OSError) as error:
        raise TryAgain(f"data: the hub did not give {source!r} ({first_line(error)}); try again") from None
    assert isinstance(splits, Mapping)
    return splits
