"""Folders of data files: which of them belong to which split, by their names or as save_to_disk has written them."""

import os
from collections.abc import Mapping
from pathlib import Path

from fleetune.contracts import json_io
from fleetune.contracts.record import check_file_name
from fleetune.data.splits import TEST_NAMES, TRAIN, split_names
from fleetune.data.tables import SUFFIXES
from fleetune.errors import Refused

MAX_LISTED = 5
NO_SPLIT = ""


def folder_splits(folder: Path, needs_train: bool = True) -> dict[str, tuple[Path, ...]]:
    """Data files by split name, in sorted order; if no file names a split, all files are `train`.

    Raises Refused if `needs_train` and no file trains, if a file names two splits, and if some files name a split and
    others none: nobody would notice that those are not read.
    """
    saved = _saved_to_disk(folder)
    if saved:
        return saved
    files = data_files(folder)
    splits: dict[str, list[Path]] = {}
    for file in files:
        splits.setdefault(_split_of(folder, file), []).append(file)
    if set(splits) == {NO_SPLIT}:
        return {TRAIN: tuple(files)}
    if TRAIN not in splits and (needs_train or not files or NO_SPLIT in splits):
        raise Refused(
            f"{folder}: no train data; name a file train{{{','.join(SUFFIXES)}}}, list what trains in data.files, or "
            f"keep images in a folder per class (data files found: {_listed(folder, files) or 'none'})"
        )
    _check_all_named(folder, splits)
    return {name: tuple(found) for name, found in splits.items()}


def listed_splits(files: tuple[Path, ...]) -> dict[str, tuple[Path, ...]]:
    """Files that were listed, by split name; all of them are `train` unless some name train and others a test split.

    A file that names no split, or two, trains: it was listed to be read.
    """
    below = os.path.commonpath([file.parent for file in files])
    named = {file: _nearest_names(file.relative_to(below)) for file in files}
    tested = {file: min(words) for file, words in named.items() if len(words) == 1 and TRAIN not in words}
    if not tested or {TRAIN} not in named.values():
        return {TRAIN: files}
    splits = {TRAIN: tuple(file for file in files if file not in tested)}
    for file, name in tested.items():
        splits[name] = (*splits.get(name, ()), file)
    return splits


def data_files(folder: Path) -> list[Path]:
    """Every file of a table in a folder and its subfolders, by name; not those that are hidden."""
    return sorted(file for file in folder.rglob("*") if _is_data(file.relative_to(folder)) and file.is_file())


def _is_data(relative: Path) -> bool:
    return relative.suffix.lower() in SUFFIXES and not any(part.startswith(".") for part in relative.parts)


def _check_all_named(folder: Path, splits: Mapping[str, list[Path]]) -> None:
    if NO_SPLIT in splits:
        raise Refused(
            f"{folder}: {_listed(folder, splits[TRAIN])} names what to train on, so {_listed(folder, splits[NO_SPLIT])}"
            f" would not be read; begin its name with {TRAIN} or a test split ({', '.join(TEST_NAMES)}) and a dot or "
            "hyphen, take it out of the folder, or list what trains in data.files"
        )


def _listed(folder: Path, files: list[Path]) -> str:
    more = f" and {len(files) - MAX_LISTED} more" if len(files) > MAX_LISTED else ""
    return ", ".join(str(file.relative_to(folder)) for file in files[:MAX_LISTED]) + more


def _split_of(folder: Path, file: Path) -> str:
    """`train` for train.csv, imdb_train-0.parquet and train/x.parquet; empty if no part of the path names a split.

    Raises Refused if a part names two.
    """
    found = sorted(_nearest_names(file.relative_to(folder)))
    if found[1:]:
        raise Refused(
            f"{folder}: {file.relative_to(folder)} names {' and '.join(found)}, so it is not clear whether it trains; "
            f"give its name one of {', '.join((TRAIN, *TEST_NAMES))}, take it out of the folder, or list what trains "
            "in data.files"
        )
    return found[0] if found else NO_SPLIT


def _nearest_names(relative: Path) -> frozenset[str]:
    """The splits that a file's name has, or else the nearest of its folders whose name has any."""
    return next((found for part in reversed(relative.parts) if (found := split_names(part))), frozenset())


def _saved_to_disk(folder: Path) -> dict[str, tuple[Path, ...]]:
    """Splits of a folder written by save_to_disk of the `datasets` package; empty for other folders."""
    try:
        if (folder / "dataset_dict.json").is_file():
            names = json_io.parse_plain((folder / "dataset_dict.json").read_bytes(), str(folder))["splits"]
            for name in names:
                check_file_name(str(folder), name)
            splits = {name: _arrow_files(folder / name) for name in names}
        elif (folder / "state.json").is_file():
            splits = {TRAIN: _arrow_files(folder)}
        else:
            return {}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise Refused(f"{folder}: not a whole data set as save_to_disk writes it ({error}); save it again") from None
    if TRAIN not in splits:
        raise Refused(f"{folder}: it has the splits {', '.join(splits) or 'none'}; one must be called train")
    return splits


def _arrow_files(folder: Path) -> tuple[Path, ...]:
    state = json_io.parse_plain((folder / "state.json").read_bytes(), str(folder))
    for entry in state["_data_files"]:
        check_file_name(str(folder), entry["filename"])
    return tuple(folder / entry["filename"] for entry in state["_data_files"])
