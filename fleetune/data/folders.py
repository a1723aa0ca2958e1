"""Folders of data files: which of them belong to which split, by their names or as save_to_disk has written them."""

import os
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from fleetune.contracts import json_io
from fleetune.contracts.record import check_file_name
from fleetune.data.data_cards import check_card, other_splits
from fleetune.data.public_words import Told
from fleetune.data.splits import TEST_NAMES, TRAIN, joined_names, split_names
from fleetune.data.tables import SUFFIXES
from fleetune.formatting import shortlist

MAX_LISTED = 5
NO_SPLIT = ""
OTHER_SUFFIXES = (
    *(".json", ".jsonlines", ".jl", ".ndjson", ".tsv", ".txt", ".xml", ".xlsx", ".xls", ".ods"),
    *(".avro", ".feather", ".orc", ".pkl", ".pq", ".tfrecord"),
    *(".gz", ".bz2", ".xz", ".zst", ".zip", ".tar", ".tgz", ".7z"),
)
"""Files that may hold rows, and are not read in a folder."""
DESCRIPTIONS = ("dataset_dict.json", "dataset_info.json", "dataset_infos.json", "state.json")
"""Files of the `datasets` package that hold no rows."""
SHARD = re.compile(r"(?P<before>.*?)(?P<number>\d{1,6})-of-(?P<total>\d{1,6})(?!\d)(-[0-9a-f]{6,}(?=\.))?(?P<after>.*)")
WIDTH = 5
"""Digits of both numbers in names of the hub's files."""


def folder_splits(folder: Path, needs_train: bool = True) -> tuple[dict[str, tuple[Path, ...]], tuple[str, ...]]:
    """Data files by split name, in sorted order, and a sentence that names others which may hold rows, if there are.

    If no file names a split, all files are `train`; else those that name none may be in another by the folder's card.
    Raises Refused if `needs_train` and no file trains, if names are unclear, if some name a split and others none, if
    those of a split are all of kinds that are not read in a folder, and if the folder's card says otherwise.
    """
    saved = _saved_to_disk(folder)
    if saved:
        return saved, ()
    every = _files(folder, (*SUFFIXES, *OTHER_SUFFIXES))
    files = [file for file in every if file.suffix.lower() in SUFFIXES]
    others = [file for file in every if file.suffix.lower() in OTHER_SUFFIXES and file.name.lower() not in DESCRIPTIONS]
    check_shards(files)
    splits: dict[str, list[Path]] = {}
    for file in files:
        splits.setdefault(_split_of(folder, file), []).append(file)
    _check_kinds(folder, [file for file in others if _nearest_names(file.relative_to(folder)) - splits.keys()])
    notes = _unread_notes(folder, others)
    if set(splits) == {NO_SPLIT}:
        notes += _check_joined(folder, files)
        splits = {TRAIN: files}
    unread = f'; not read: {_listed(folder, others)}; save each text as a line {{"text": "..."}} of .jsonl'
    if TRAIN not in splits and (needs_train or not files or NO_SPLIT in splits):
        raise Told(
            "{}: no train data; name a file train{{{suffixes}}}, list what trains in data.files, or keep images in a "
            "folder per class (data files found: {})",
            folder,
            (_listed(folder, files) or "none") + (unread if others else ""),
            suffixes=",".join(SUFFIXES),
        )
    if NO_SPLIT in splits:
        by_card = other_splits(folder, splits[NO_SPLIT])
        for file in splits.pop(NO_SPLIT):
            splits.setdefault(by_card.get(file, NO_SPLIT), []).append(file)
    _check_all_named(folder, splits)
    given = {name: tuple(found) for name, found in splits.items()}
    check_card(folder, given)
    return given, notes


def listed_splits(files: tuple[Path, ...]) -> dict[str, tuple[Path, ...]]:
    """Files that were listed, by split name; all of them are `train` unless some name train and others a test split.

    A file that names no split, or two, trains: it was listed to be read.
    """
    below = os.path.commonpath([file.parent for file in files])
    named = {file: _nearest_names(file.relative_to(below)) for file in files}
    tested = {file: min(words) for file, words in named.items() if len(words) == 1 and TRAIN not in words}
    if not tested or {TRAIN} not in named.values():
        _check_joined(Path(below), files)
        return {TRAIN: files}
    splits = {TRAIN: tuple(file for file in files if file not in tested)}
    for file, name in tested.items():
        splits[name] = (*splits.get(name, ()), file)
    return splits


def data_files(folder: Path) -> list[Path]:
    """Every file of a table in a folder and its subfolders, by name; not those that are hidden."""
    return _files(folder, tuple(SUFFIXES))


def check_shards(files: Iterable[Path]) -> None:
    """Refuse missing and repeated files, by names such as `train-00001-of-00003`, numbered from 0 or from 1.

    A single file counts if its numbers are written as the hub's are; of others, such as `top-10-of-2023`, two.
    """
    found: dict[tuple[Path, str, str, str], dict[int, str]] = {}
    for file in files:
        if shard := SHARD.fullmatch(file.name):
            numbers = found.setdefault((file.parent, shard["before"], shard["total"], shard["after"]), {})
            if int(shard["number"]) in numbers:
                raise Told("{}: another file has its number, too; take the older one of them out of the folder", file)
            numbers[int(shard["number"])] = shard["number"]
    for (place, before, total, _), numbers in found.items():
        first = 0 if 0 in numbers or int(total) not in numbers else 1
        width = len(next(iter(numbers.values())))
        gone = [number for number in range(first, first + int(total)) if number not in numbers]
        if gone and (len(numbers) > 1 or len(total) == width >= WIDTH):
            raise Told(
                "{}: {} of {} files called {}*-of-{} are missing ({}); fetch them, or list what there is in data.files",
                place,
                len(gone),
                int(total),
                before,
                total,
                ", ".join(f"{before}{number:0{width}}-of-{total}" for number in gone[:MAX_LISTED])
                + (" and others" if gone[MAX_LISTED:] else ""),
            )


def _unread_notes(folder: Path, others: list[Path]) -> tuple[str, ...]:
    if not others:
        return ()
    return (
        f"of the files of {folder.resolve().name}, those in {', '.join(SUFFIXES)} are read; not read: "
        f"{_listed(folder, others)}",
    )


def _files(folder: Path, suffixes: tuple[str, ...]) -> list[Path]:
    return sorted(
        file
        for file in folder.rglob("*")
        if file.suffix.lower() in suffixes
        and not any(part.startswith(".") for part in file.relative_to(folder).parts)
        and file.is_file()
    )


def _check_kinds(folder: Path, unread: list[Path]) -> None:
    """Refuse files of splits of which no table is read."""
    if unread:
        raise Told(
            "{}: {} would not be read, since of a folder only {suffixes} files are; save it as one of these, take it "
            "out of the folder, or list what trains in data.files (.json too), and what is tested on in "
            "data.validation",
            folder,
            _listed(folder, unread),
            suffixes=", ".join(SUFFIXES),
        )


def _check_all_named(folder: Path, splits: Mapping[str, list[Path]]) -> None:
    if NO_SPLIT in splits:
        raise Told(
            "{}: {} names what to train on, so {} would not be read; begin its name with {train} or a test split "
            "({tests}) and a dot or hyphen, take it out of the folder, or list what trains in data.files",
            folder,
            _listed(folder, splits[TRAIN]),
            _listed(folder, splits[NO_SPLIT]),
            train=TRAIN,
            tests=", ".join(TEST_NAMES),
        )


def _listed(folder: Path, files: list[Path]) -> str:
    return shortlist(file.relative_to(folder) for file in files)


def _split_of(folder: Path, file: Path) -> str:
    """`train` for train.csv, imdb_train-0.parquet and train/x.parquet; empty if no part of the path names a split.

    Raises Refused if a part names two.
    """
    found = sorted(_nearest_names(file.relative_to(folder)))
    if found[1:]:
        raise Told(
            "{}: {} names {}, so it is not clear whether it trains; give its name one of {names}, take it out of the "
            "folder, or list what trains in data.files",
            folder,
            file.relative_to(folder),
            " and ".join(found),
            names=", ".join((TRAIN, *TEST_NAMES)),
        )
    return found[0] if found else NO_SPLIT


def _nearest_names(relative: Path) -> frozenset[str]:
    """The splits that a file's name has, or else the nearest of its folders whose name has any."""
    return _nearest(relative, split_names)


def _nearest(relative: Path, names: Callable[[str], frozenset[str]]) -> frozenset[str]:
    return next((found for part in reversed(relative.parts) if (found := names(part))), frozenset())


def _check_joined(folder: Path, files: Iterable[Path]) -> tuple[str, ...]:
    """Refuse files of which some may mean to train, and others to test, by a word that is joined to others; return a
    sentence that names the latter where there are no others."""
    joined = {file: _nearest(file.relative_to(folder), joined_names) for file in files}
    tests = [file for file, names in joined.items() if names and TRAIN not in names]
    if tests and {TRAIN} in joined.values():
        raise Told(
            "{}: it is not clear which files train, since {} may name splits; have {train} or a test split ({tests}) "
            "as a word of its own in their names, such as imdb-train.jsonl, or none of these at either end of a word",
            folder,
            _listed(folder, [file for file, names in joined.items() if names]),
            train=TRAIN,
            tests=", ".join(TEST_NAMES),
        )
    if not tests:
        return ()
    word = "to test on any of them, have test as a word of its own in its name, such as imdb-test.jsonl"
    return (f"all files of {folder.resolve().name} train, also {_listed(folder, tests)}; {word}",)


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
    except Told:
        raise
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise Told("{}: not a whole data set as save_to_disk writes it ({}); save it again", folder, error) from None
    if TRAIN not in splits:
        raise Told("{}: it has the splits {}; one must be called train", folder, ", ".join(splits) or "none")
    return splits


def _arrow_files(folder: Path) -> tuple[Path, ...]:
    state = json_io.parse_plain((folder / "state.json").read_bytes(), str(folder))
    if state.get("_indices_data_files") or state.get("_indices_files"):
        raise Told(
            "{}: only some rows of its files are in the set; call its flatten_indices() and save it again", folder
        )
    for entry in state["_data_files"]:
        check_file_name(str(folder), entry["filename"])
    return tuple(folder / entry["filename"] for entry in state["_data_files"])
