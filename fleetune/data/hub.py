"""Data sets named on the Hugging Face hub, through the optional `datasets` package."""

import hashlib
import importlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fleetune.contracts.run_config import DataRequest
from fleetune.data.table import Source
from fleetune.errors import Refused, TryAgain

HUB_NAME = re.compile(r"(?P<name>\w[\w.-]*(/\w[\w.-]*)?)(:(?P<config>[\w.-]+))?(@(?P<revision>[\w./-]+))?")
"""OWNER/NAME, with :CONFIG and @REVISION where wanted."""
COMMIT = re.compile(r"[0-9a-f]{40}")
CHUNK_BYTES = 1 << 20


@dataclass(frozen=True, kw_only=True)
class HubTable:
    """One split as `datasets` holds it: Arrow files in its own cache."""

    owner: str
    dataset: Any
    counted: str = "row"

    @property
    def columns(self) -> tuple[str, ...]:
        """In the data set's order."""
        return tuple(self.dataset.column_names)

    def names(self, column: str) -> tuple[str, ...]:
        """The names of a ClassLabel feature."""
        return tuple(getattr(self.dataset.features.get(column), "names", None) or ())

    def rows(self) -> Iterator[tuple[int, Mapping[str, Any]]]:
        """Numbered from 1."""
        yield from enumerate(self.dataset, start=1)


def hub_source(request: DataRequest) -> Source:
    """The data set's train split and its test (or else validation) split."""
    splits = _load(request.source)
    test = next((name for name in ("test", "validation") if name in splits), None)
    if "train" not in splits:
        raise Refused(f"data: {request.source} has the splits {', '.join(splits)}; one must be called train")
    return Source(
        train=(HubTable(owner=f"{request.source} (train)", dataset=splits["train"]),),
        test=(HubTable(owner=f"{request.source} ({test})", dataset=splits[test]),) if test else (),
        text_column=request.text_column,
        image_column=request.image_column,
        label_column=request.label_column,
    )


def pinned_source(source: str) -> str:
    """A name on the hub with the commit that it stands for now, where the hub or its cache here can tell."""
    found = HUB_NAME.fullmatch(source)
    assert found is not None, source
    commit = _commit(found["name"], found["revision"] or "main")
    config = f":{found['config']}" if found["config"] else ""
    return f"{found['name']}{config}@{commit}" if commit else source


def _commit(name: str, revision: str) -> str:
    """Of a data set's branch or tag; empty where neither the hub nor the cache knows it."""
    from huggingface_hub import HfApi, constants

    if COMMIT.fullmatch(revision):
        return revision
    try:
        return str(HfApi().dataset_info(name, revision=revision).sha or "")
    except Exception:  # no network, or not allowed to: what was fetched before
        kept = Path(constants.HF_HUB_CACHE) / f"datasets--{name.replace('/', '--')}" / "refs" / revision
    try:
        return kept.read_text(encoding="utf-8").strip()
    except OSError:
        return ""


def hub_digest(source: str) -> str:
    """sha256 over the Arrow files that the name resolves to in the local cache."""
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
            f"data: {source!r} is no file or folder here, and for a name on the Hugging Face hub the package datasets "
            "is missing; run `pip install 'fleetune[hub]'`"
        ) from None
    found = HUB_NAME.fullmatch(source)
    assert found is not None, source  # the caller matched it
    try:
        splits = datasets.load_dataset(
            found["name"], found["config"], revision=found["revision"], trust_remote_code=False
        )
    except (FileNotFoundError, ValueError) as error:
        raise Refused(f"data: {source!r} cannot be loaded from the hub ({_first_line(error)})") from None
    except (ConnectionError, OSError) as error:
        raise TryAgain(f"data: the hub did not give {source!r} ({_first_line(error)}); try again") from None
    assert isinstance(splits, Mapping)
    return splits


def _first_line(error: Exception) -> str:
    return str(error).strip().split("\n", 1)[0][:200]
