"""Sources of the `data` section: built-in sets, files, folders and hub names; opens, validates and digests them."""

import functools
import hashlib
import json
import math
import platform
from collections.abc import Callable, Mapping
from dataclasses import replace
from glob import glob
from importlib.metadata import version
from itertools import islice
from pathlib import Path

from fleetune.contracts.input_spec import InputSpec
from fleetune.contracts.run_config import BUILT_IN, DataRequest
from fleetune.data.data_cards import check_together
from fleetune.data.examples import check_task, examples
from fleetune.data.folders import check_shards, data_files, folder_splits, listed_splits
from fleetune.data.image_folders import image_folder_source, repeats_folders
from fleetune.data.images import image_file
from fleetune.data.labelled_split import labelled_splits
from fleetune.data.named_datasets import (
    HUB_NAME,
    digits,
    docstrings,
    hub_digest,
    hub_source,
    pinned_source,
    stdlib_files,
    stdlib_sources,
)
from fleetune.data.public_words import Told, ToldAgain
from fleetune.data.splits import (
    TRAIN,
    check_has_files,
    check_test_rows,
    held_out_count,
    newest,
    split_names,
    unread_notes,
)
from fleetune.data.tables import FILE_SUFFIXES, DataSource, InMemoryTable, Table, open_table
from fleetune.data.tokenization import chat_template_text
from fleetune.errors import Refused
from fleetune.filesystem import check_symlinks, expanded, file_digest

BUILTIN_SOURCES: dict[str, Callable[[], DataSource]] = {
    "digits": digits,
    "docstrings": docstrings,
    "stdlib-sources": stdlib_sources,
}

BUILTIN_COLUMNS = {"digits": ("image", "label"), "docstrings": ("text", "label"), "stdlib-sources": ("text",)}
"""Columns of the built-in sets, which take seconds to build."""


NAMING = (".csv", ".json", ".jsonl")
"""Files that may be a source by themselves and name images, which then count for its digest."""
LONGEST_PATH, MAX_REPEATED = 4096, 1000
"""Characters of a path that systems open, and images whose digests are kept for rows that name them again."""


def open_source(request: DataRequest, task: str) -> DataSource:
    """Open the tables of a request for a task; Refused if the source does not exist or cannot be read."""
    opened = _open_source(request, task, needs_train=not request.only_tested)
    if request.only_tested:
        opened = replace(opened, train=opened.train or opened.test, test=opened.test or opened.train, validation=())
    elif isinstance(request.validation, float) and opened.test:
        raise Told(
            "data: validation asks for a share ({validation}), but {named} has a test split of its own; leave "
            "data.validation out, or let it name a source",
            validation=request.validation,
            named=request.named,
        )
    if isinstance(request.validation, str):
        tested = _open_source(validation_request(request), task, needs_train=False)
        notes = (*opened.notes, *_replaced_notes(request, opened), *tested.split_notes, *tested.notes)
        test = tested.test or tested.train
        opened = replace(opened, test=test, validation=(), test_folder=tested.folder, notes=notes, split_notes=())
        if opened.packed or tested.packed:
            raise Told(
                "data: the text of {source} is cut into blocks; give data.validation a share",
                source=request.source,
            )
    notes = (*opened.split_notes, *opened.notes)
    return replace(opened, format=request.format, loss_on=request.loss_on, notes=notes)


def _replaced_notes(request: DataRequest, opened: DataSource) -> tuple[str, ...]:
    """A sentence if the source has a test split, which another source stands in for."""
    if not opened.test:
        return ()
    return (f"the test split of {source_name(request)} is not read, since data.validation names what is tested on",)


def validation_request(request: DataRequest) -> DataRequest:
    """The request of the source that is tested on (`data.validation`)."""
    assert isinstance(request.validation, str)
    streaming = request.streaming and is_hub_name(request.validation)
    return replace(
        request,
        source=request.validation,
        validation=None,
        files=(),
        local={},
        newest_files=None,
        streaming=streaming,
    )


def listed_files(request: DataRequest) -> tuple[Path, ...]:
    """The files that `data.files` lists, those of a pattern by name; Refused if one does not exist.

    A link counts by its own name, as in the hub's cache, where what it points to has none. A file that is named twice
    is read once, unless one name trains and the other is tested on.
    """
    found = dict[Path, None]()
    for pattern in request.files:
        path = expanded(pattern)
        matched = [path] if path.exists() else [Path(name) for name in sorted(glob(str(path), recursive=True))]
        if not matched:
            raise Told("data: files names {!r}, which no file matches; give existing files", pattern)
        if matched != [path]:
            check_shards(matched)
        for file in matched:
            if not file.is_file():
                raise Told("data: files names {}, which is no file; give its files, such as {}/*.jsonl", file, file)
            found[file.absolute()] = None
    split_of = {file: split for split, files in listed_splits(tuple(found)).items() for file in files}
    kept = dict[tuple[Path, str], Path]()
    for file in found:
        kept.setdefault((file.resolve(), split_of[file]), file)
    return tuple(kept.values())


def _open_source(request: DataRequest, task: str, needs_train: bool = True) -> DataSource:
    if request.streaming and not is_hub_name(request.source):
        raise Told(
            "data: streaming is for sets on the Hugging Face hub, and {named} is read row by row anyway; leave "
            "data.streaming out",
            named=request.named,
        )
    if request.files:
        return _tables(request, task, listed_splits(listed_files(request)), None)
    if request.source in BUILTIN_SOURCES:
        return BUILTIN_SOURCES[request.source]()
    path = source_path(request.source)
    has_files = _has_files(path)
    check_has_files(request, has_files)
    if path is None:
        return hub_source(request, task, needs_train)
    if not path.is_dir():
        return _tables(request, task, {TRAIN: (path,)}, path.parent if path.suffix.lower() in NAMING else None)
    if not has_files:
        pictures = image_folder_source(path, request, needs_train)
    else:
        pictures = None if InputSpec(task=task).is_text else _beside_tables(path, request, needs_train)
    if pictures is not None:
        return pictures
    splits, notes = folder_splits(path, needs_train)
    opened = _tables(request, task, newest(request, splits), path)
    return replace(opened, notes=(*opened.notes, *notes))


def _beside_tables(folder: Path, request: DataRequest, needs_train: bool) -> DataSource | None:
    """Folders of classes beside tables that repeat their names; None for tables that say more, or name a split."""
    tables = {file.relative_to(folder): open_table(file) for file in data_files(folder)}
    named = any(split_names(part) for file in tables for part in file.parts) or request.newest_files is not None
    if named or any({request.image_column, "file_name"} & {*table.columns} for table in tables.values()):
        return None
    try:
        found = image_folder_source(folder, request, needs_train)
    except Refused:
        return None
    classes = {row[request.label_column] for one in found.tables for _, row in one.rows()} if found else set[str]()
    if found is None or not all(repeats_folders(table, classes) for table in tables.values()):
        return None
    note = f"{', '.join(map(str, tables))}: not read, since it repeats the names of the folders of images"
    return replace(found, notes=(*found.notes, note))


def _tables(request: DataRequest, task: str, splits: Mapping[str, tuple[Path, ...]], folder: Path | None) -> DataSource:
    @functools.cache
    def opened(split: str) -> tuple[Table, ...]:
        return tuple(open_table(file) for file in splits.get(split, ()))

    tested, chooses, unlabelled_notes = labelled_splits(splits, opened, request.label_column, task)
    if folder is not None:
        check_together(folder, {name: splits[name] for name in (TRAIN, tested) if name in splits})
        try:
            check_together(folder, {name: splits[name] for name in (chooses,) if name in splits})
        except Refused:  # of several sets none is the one that states are chosen by
            chooses = ""
    return DataSource(
        train=opened(TRAIN),
        test=opened(tested),
        validation=opened(chooses),
        text_column=request.text_column,
        image_column=request.image_column,
        label_column=request.label_column,
        target_column=request.target_column,
        folder=folder,
        split_notes=(*unlabelled_notes, *unread_notes(source_name(request), splits, tested, chooses)),
    )


def validate_data(request: DataRequest, task: str) -> None:
    """Check a source cheaply before a run starts; hub names are skipped, because reading them means downloading them.

    Raises Refused for missing columns, splits without rows, an invalid first row, and fewer test rows than requested.
    Builds a built-in set only to count its test rows.
    """
    spec = InputSpec(task=task)
    if request.chat_template is not None:
        chat_template_text(Path(request.chat_template))
    if isinstance(request.validation, str) and request.validation not in BUILT_IN:
        source_path(request.validation)
    if request.source in BUILT_IN:
        row = dict.fromkeys(BUILTIN_COLUMNS[request.source], "")
        stand_in = DataSource(
            train=(InMemoryTable(name=request.source, values=(row,)),), packed=request.source == "stdlib-sources"
        )
        check_task(request, stand_in, spec)
        if request.test_samples is not None and not stand_in.packed:
            _check_test_rows(request, open_source(request, task), request.test_samples)
        return
    if is_remote(request):
        return
    source = open_source(request, task)
    check_task(request, source, spec)
    for tables in (source.train, source.test, source.validation):
        first = next((example for table in tables for example in examples(table, source, spec)), None)
        if tables and first is None:
            raise Told("{}: no samples in it; give at least one row", tables[0].name)
    if request.test_samples is not None:
        _check_test_rows(request, source, request.test_samples)


def is_remote(request: DataRequest) -> bool:
    """True if some of the data are names on the hub."""
    return any(is_hub_name(one) for one in (request.source, request.validation) if isinstance(one, str))


def is_hub_name(source: str) -> bool:
    """True for a name on the hub."""
    return bool(source) and source not in BUILT_IN and source_path(source) is None


def _check_test_rows(request: DataRequest, source: DataSource, requested: int) -> None:
    if source.test:
        check_test_rows(request, _count_rows(source.test, requested))
        return
    if request.by_content:
        return  # how many rows are held out is known once all are read
    limit = math.ceil(requested / request.held_out_share) + 1
    check_test_rows(request, held_out_count(_count_rows(source.train, limit), request.held_out_share))


def _count_rows(tables: tuple[Table, ...], limit: int) -> int:
    return sum(1 for _ in islice((row for table in tables for row in table.rows()), limit))


def pinned_request(request: DataRequest) -> DataRequest:
    """Return the request with hub names pinned to their current commit; other sources are unchanged."""
    if is_hub_name(request.source):
        request = replace(request, source=pinned_source(request.source))
    if isinstance(request.validation, str) and is_hub_name(request.validation):
        request = replace(request, validation=pinned_source(request.validation))
    return request


def source_path(source: str) -> Path | None:
    """Path of a file or folder source; None for a hub name; Refused for anything else."""
    path = expanded(source)
    if path.exists():
        if path.is_dir():
            check_symlinks(path, "data")
        return path
    if HUB_NAME.fullmatch(source) and path.suffix.lower() not in FILE_SUFFIXES:
        return None
    raise Told(
        "data: source {source!r} does not exist; allowed are {builtin}, a {suffixes} file, a folder of such files or "
        "of images by class, or a name on the Hugging Face hub; data.files lists several files or patterns",
        source=source,
        builtin=", ".join(BUILT_IN),
        suffixes=", ".join(FILE_SUFFIXES),
    )


def source_name(request: DataRequest) -> str:
    """Name of a source without the paths of files and folders, which differ between machines."""
    if request.files:
        return ", ".join(file.name for file in listed_files(request))
    source = request.source
    path = None if source in BUILTIN_SOURCES else source_path(source)
    if path is None:
        return source
    return path.name if path.is_file() else path.resolve().name


DATA_VERSION = 10
"""Increased whenever this package would prepare other arrays from the same source, or another tokenizer folder."""


def content_digest(request: DataRequest, images: bool = True) -> str:
    """sha256 (hex) over the bytes of the request's source and of images it names, its chat template, and DATA_VERSION.

    Reads every byte on every call, because size and modification time do not reveal an edit in place. Includes the
    file names of a folder, without files that `newest_files` leaves unread, and the versions of the packages that ship
    a built-in set. images: False if texts are read, so that a table by itself names none.
    """
    digest = _source_digest(request, images)
    if isinstance(request.validation, str):
        digest = _digest_of("validation", digest, _source_digest(validation_request(request), images))
    if request.chat_template is not None:
        digest = _digest_of("chat template", digest, _file_digest(Path(request.chat_template)))
    return digest


def _source_digest(request: DataRequest, images: bool) -> str:
    if request.files:
        splits = listed_splits(listed_files(request)).items()
        named = (f"{split}\0{file.name}\0{_file_digest(file)}" for split, files in splits for file in files)
        return _digest_of("files", *named)
    if request.source == "digits":
        return _digest_of("digits", version("scikit-learn"))
    if request.source in ("docstrings", "stdlib-sources"):
        files = [f"{name}\0{_file_digest(path)}" for name, path in stdlib_files()]
        return _digest_of(request.source, platform.python_version(), *files)
    path = source_path(request.source)
    check_has_files(request, _has_files(path))
    if path is None:
        return _digest_of("hub", hub_digest(request))
    if path.is_file():
        pictures = _named_images(request, path) if images and path.suffix.lower() in NAMING else []
        return _digest_of("file", path.suffix.lower(), _file_digest(path), *pictures)
    older = _older_files(request, path)
    kept = (file for file in path.rglob("*") if file.is_file() and file not in older)
    names = sorted(file.relative_to(path).as_posix() for file in kept)
    return _digest_of("folder", *(f"{name}\0{_file_digest(path / name)}" for name in names))


def _named_images(request: DataRequest, path: Path) -> list[str]:
    """One digest of all images that a file of text names in its image column, which lie beside or below it; empty if
    there is none."""
    found, digest = hashlib.sha256(), functools.lru_cache(maxsize=MAX_REPEATED)(_file_digest)
    none = found.hexdigest()
    try:
        for _, row in open_table(path).rows():
            name = row.get(request.image_column)
            name = name.get("bytes") or name.get("path") if isinstance(name, dict) else name
            if isinstance(name, str) and len(name) <= LONGEST_PATH and (file := image_file(name, path.parent)):
                found.update(json.dumps((name, digest(file))).encode())
    except Refused:  # whoever reads the rows tells it
        return []
    return [found.hexdigest()] if found.hexdigest() != none else []


def _has_files(path: Path | None) -> bool:
    return path is not None and path.is_dir() and bool(data_files(path))


def _older_files(request: DataRequest, folder: Path) -> frozenset[Path]:
    """Data files that `newest_files` leaves unread."""
    if request.newest_files is None:
        return frozenset()
    splits, _ = folder_splits(folder, needs_train=not request.only_tested)
    kept = newest(request, splits)
    return frozenset(file for name, files in splits.items() for file in files if file not in kept[name])


def checked_digest(request: DataRequest, expected: str | None, images: bool = True) -> str:
    """Return the content digest; TryAgain if the source is a file or folder, and `expected` is another digest.

    The digests of built-in sets and hub names depend on the versions and caches of a machine, so they are not compared.
    """
    digest = content_digest(request, images)
    local = request.source not in BUILTIN_SOURCES and not is_hub_name(request.source)
    if local and expected is not None and digest != expected:
        raise ToldAgain(
            "data: {} was changed after this run read it for its digest, so what was prepared belongs to no known "
            "content; leave it as it is and start the run again",
            request.named,
        )
    return digest


def _digest_of(*texts: str) -> str:
    return hashlib.sha256(json.dumps((DATA_VERSION, *texts)).encode()).hexdigest()


def _file_digest(path: Path) -> str:
    try:
        return file_digest(path)
    except OSError as error:
        raise Told("{}: cannot be read ({}); give a readable file", path, error.strerror) from None
