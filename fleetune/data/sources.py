"""From the `data` section of a run to its tables: built-in sets, files, folders, names on the hub."""

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from fleetune.contracts import wire
from fleetune.contracts.record import check_file_name
from fleetune.contracts.run_config import BUILT_IN, DataRequest
from fleetune.data.class_folders import class_folders
from fleetune.data.digits import digits
from fleetune.data.hub import HUB_NAME, hub_source, pinned_source
from fleetune.data.stdlib import docstrings, stdlib_sources
from fleetune.data.table import Source
from fleetune.data.tables import SUFFIXES, open_table
from fleetune.errors import Refused
from fleetune.filesystem import check_symlinks

TEST_NAMES = ("test", "validation", "valid", "dev", "eval")
"""Splits that serve as test data; the first that a source has is taken."""
SPLIT_NAME = re.compile(rf"({'|'.join(('train', *TEST_NAMES))})(?=$|[._-])", re.IGNORECASE)
BUILDERS: dict[str, Callable[[], Source]] = {
    "digits": digits,
    "docstrings": docstrings,
    "stdlib-sources": stdlib_sources,
}


def open_source(request: DataRequest) -> Source:
    """The tables of a request; refused where there is nothing of that name or it cannot be read."""
    if request.source in BUILDERS:
        return BUILDERS[request.source]()
    path = source_path(request.source)
    if path is None:
        return hub_source(request)
    pictures = class_folders(path, request) if path.is_dir() and not _data_files(path) else None
    if pictures is not None:
        return pictures
    splits = folder_splits(path) if path.is_dir() else {"train": (path,)}
    test = next((splits[name] for name in TEST_NAMES if name in splits), ())
    return Source(
        train=tuple(open_table(file) for file in splits["train"]),
        test=tuple(open_table(file) for file in test),
        text_column=request.text_column,
        image_column=request.image_column,
        label_column=request.label_column,
        folder=path if path.is_dir() else None,
    )


def pinned_request(request: DataRequest) -> DataRequest:
    """The same data, with the commit that a name on the hub stands for now."""
    if request.source in BUILDERS or source_path(request.source) is not None:
        return request
    return replace(request, source=pinned_source(request.source))


def source_path(source: str) -> Path | None:
    """The file or folder a source names; None for a name on the hub; anything else is refused."""
    path = Path(source).expanduser()
    if path.exists():
        if path.is_dir():
            check_symlinks(path, "data")
        return path
    if HUB_NAME.fullmatch(source) and path.suffix.lower() not in SUFFIXES:
        return None
    raise Refused(
        f"data: source {source!r} does not exist; allowed are {', '.join(BUILT_IN)}, a {', '.join(SUFFIXES)} file, "
        "a folder of such files or of images by class, or a name on the Hugging Face hub"
    )


def folder_splits(folder: Path) -> dict[str, tuple[Path, ...]]:
    """Data files by split name, in sorted order; files that name no split count as `train` when none does."""
    saved = _saved_to_disk(folder)
    if saved:
        return saved
    files = _data_files(folder)
    splits: dict[str, list[Path]] = {}
    for file in files:
        splits.setdefault(_split_of(file.relative_to(folder)), []).append(file)
    if "train" not in splits and set(splits) == {""}:
        splits["train"] = splits.pop("")
    if "train" not in splits:
        found = ", ".join(str(file.relative_to(folder)) for file in files[:5]) or "none"
        raise Refused(
            f"{folder}: no train data; name a file train{{{','.join(SUFFIXES)}}}, or keep images in a folder per class "
            f"(data files found: {found})"
        )
    return {name: tuple(found) for name, found in splits.items() if name}


def _data_files(folder: Path) -> list[Path]:
    return sorted(file for file in folder.rglob("*") if file.is_file() and file.suffix.lower() in SUFFIXES)


def _split_of(relative: Path) -> str:
    """`train` for train.csv, data/train-00000-of-00001.parquet and train/x.parquet; empty where nothing says."""
    for part in reversed(relative.parts):
        found = SPLIT_NAME.match(part)
        if found:
            return found[1].lower()
    return ""


def _saved_to_disk(folder: Path) -> dict[str, tuple[Path, ...]]:
    """Splits of a folder written by `datasets`' save_to_disk; empty where it is none."""
    try:
        if (folder / "dataset_dict.json").is_file():
            names = wire.parse_plain((folder / "dataset_dict.json").read_bytes(), str(folder))["splits"]
            for name in names:
                check_file_name(str(folder), name)
            splits = {name: _arrow_files(folder / name) for name in names}
        elif (folder / "state.json").is_file():
            splits = {"train": _arrow_files(folder)}
        else:
            return {}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise Refused(f"{folder}: not a whole data set as save_to_disk writes it ({error}); save it again") from None
    if "train" not in splits:
        raise Refused(f"{folder}: it has the splits {', '.join(splits) or 'none'}; one must be called train")
    return splits


def _arrow_files(folder: Path) -> tuple[Path, ...]:
    state = wire.parse_plain((folder / "state.json").read_bytes(), str(folder))
    for entry in state["_data_files"]:
        check_file_name(str(folder), entry["filename"])
    return tuple(folder / entry["filename"] for entry in state["_data_files"])
