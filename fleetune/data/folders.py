"""Folders of data files: which of them belong to which split, by their names or as save_to_disk has written them."""

import re
from collections.abc import Mapping
from pathlib import Path

from fleetune.contracts import json_io
from fleetune.contracts.record import check_file_name
from fleetune.data.splits import TEST_NAMES, TRAIN
from fleetune.data.tables import SUFFIXES
from fleetune.errors import Refused

SPLIT_NAME = re.compile(rf"({'|'.join((TRAIN, *TEST_NAMES))})(?=$|[._-])", re.IGNORECASE)
MAX_LISTED = 5
NO_SPLIT = ""


def folder_splits(folder: Path) -> dict[str, tuple[Path, ...]]:
    """Data files by split name, in sorted order; if no file names a split, all files are `train`.

    Raises Refused if no file trains, and if some files name a split and others none: nobody would notice that those
    are not read.
    """
    saved = _saved_to_disk(folder)
    if saved:
        return saved
    files = data_files(folder)
    splits: dict[str, list[Path]] = {}
    for file in files:
        splits.setdefault(_split_of(file.relative_to(folder)), []).append(file)
    if set(splits) == {NO_SPLIT}:
        return {TRAIN: tuple(files)}
    if TRAIN not in splits:
        raise Refused(
            f"{folder}: no train data; name a file train{{{','.join(SUFFIXES)}}}, or keep images in a folder per class "
            f"(data files found: {_listed(folder, files) or 'none'})"
        )
    _check_all_named(folder, splits)
    return {name: tuple(found) for name, found in splits.items()}


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


def _split_of(relative: Path) -> str:
    """`train` for train.csv, data/train-00000-of-00001.parquet and train/x.parquet; empty if no part names a split."""
    for part in reversed(relative.parts):
        found = SPLIT_NAME.match(part)
        if found:
            return found[1].lower()
    return NO_SPLIT


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
