"""Writes the `data` artifact: a folder of arrays, split by split and in chunks of samples."""

import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from fleetune.contracts import json_io
from fleetune.contracts.input_spec import InputSpec
from fleetune.contracts.run_config import DataRequest
from fleetune.contracts.task import Progress, ignore_progress
from fleetune.data.examples import Example, Survey, check_task, examples, survey_tables
from fleetune.data.image_processor import ImageEncoder, ImageProcessor, open_image_processor
from fleetune.data.labels import LabelMapping, absent_class_notes, map_labels, spell_labels
from fleetune.data.prepared_data import (
    IMAGE_PROCESSOR,
    INFO,
    TOKENIZER,
    Array,
    ArrayInfo,
    DataInfo,
    LocalInfo,
    LocalSource,
    SplitInfo,
    create_arrays,
)
from fleetune.data.sources import checked_digest, open_source, source_name
from fleetune.data.splits import (
    TEST,
    TRAIN,
    RowIndices,
    check_test_rows,
    overlap_notes,
    shuffled,
    split_rows,
)
from fleetune.data.tables import DataSource, Table
from fleetune.data.tokenization import TextEncoder, open_tokenizer, pack_documents, save_tokenizer, token_arrays
from fleetune.errors import Refused

CHUNK_SAMPLES = 512
NOT_HERE = "local"
"""Name of the source in a request whose data lie elsewhere."""


class Encoder(Protocol):
    """Turns examples into rows of named arrays."""

    def arrays(self, samples: int) -> tuple[ArrayInfo, ...]:
        """Describe the arrays that hold `samples` samples."""

    def encode(self, chunk: list[Example]) -> dict[str, Array]:
        """Return the rows of a chunk by array name, first axis = position in the chunk."""


@dataclass(frozen=True, kw_only=True)
class SharedChoices:
    """What sources that lie apart must agree on."""

    label_ids: Mapping[str, int]
    """Name of a label -> class id."""
    labels: tuple[str, ...]
    """Class names by id."""
    image_shape: tuple[int, int]
    """Height and width of every prepared image; (0, 0) for text."""


@dataclass(frozen=True, kw_only=True)
class Preparation:
    """The input of one preparation."""

    request: DataRequest
    spec: InputSpec
    seed: int
    progress: Progress = ignore_progress
    expected_digest: str | None = None
    """TryAgain for a file or folder whose content is not that of this digest once it was read."""
    local: tuple[LocalSource, ...] = ()
    """Data that lie on devices; they train instead of these."""
    local_labels: tuple[str, ...] = ()
    """Names of the labels that they have."""
    shared: SharedChoices | None = None
    """Choices made elsewhere, for data that lie on a device: nothing is held out for testing."""


@dataclass(frozen=True, kw_only=True)
class _Preparation:
    """A preparation with its open source and output folder."""

    asked: Preparation
    source: DataSource
    folder: Path

    @property
    def request(self) -> DataRequest:
        return self.asked.request

    @property
    def spec(self) -> InputSpec:
        return self.asked.spec

    @property
    def seed(self) -> int:
        return self.asked.seed

    @property
    def progress(self) -> Progress:
        return self.asked.progress


@dataclass(frozen=True, kw_only=True)
class _Prepared:
    """Arrays of all splits as written, for data.json."""

    labels: tuple[str, ...]
    splits: tuple[SplitInfo, ...]
    pad_token_id: int | None
    notes: tuple[str, ...]
    label_ids: Mapping[str, int] = field(default_factory=dict)


def prepare_data(
    request: DataRequest,
    spec: InputSpec,
    folder: Path,
    seed: int,
    progress: Progress = ignore_progress,
    expected_digest: str | None = None,
) -> None:
    """Write the `data` artifact for a task into `folder`; see `write_data`."""
    asked = Preparation(request=request, spec=spec, seed=seed, progress=progress, expected_digest=expected_digest)
    write_data(asked, folder)


def write_data(asked: Preparation, folder: Path) -> None:
    """Write prepared data into `folder`, which must be new or empty.

    The same source, spec and seed give the same bytes. Raises Refused for an unsuitable source, and TryAgain for one
    that was changed; both leave no files.
    """
    request, spec = asked.request, asked.spec
    if spec.is_text and spec.max_positions is not None and request.max_length > spec.max_positions:
        raise Refused(
            f"data: max_length is {request.max_length}, but the model has {spec.max_positions} positions; "
            f"set data.max_length to at most {spec.max_positions}"
        )
    source = open_source(request)
    check_task(request, source, spec)
    with _atomic_folder(folder) as part:
        job = _Preparation(asked=asked, source=source, folder=part)
        written = _write_packed(job) if source.packed else _write_samples(job)
        info = DataInfo(
            task=spec.task,
            labels=written.labels,
            splits=written.splits,
            source=source_name(request.source),
            digest=checked_digest(request, asked.expected_digest),
            seed=asked.seed,
            pad_token_id=written.pad_token_id,
            notes=(*_byte_tokenizer_note(spec), *written.notes),
            local=_local_info(asked, written),
        )
        json_io.write(info, part / INFO)


def _local_info(asked: Preparation, written: _Prepared) -> LocalInfo | None:
    if not asked.local:
        return None
    request = replace(asked.request, source=NOT_HERE, local={})
    return LocalInfo(request=request, label_ids=dict(written.label_ids), sources=asked.local)


def _write_samples(job: _Preparation) -> _Prepared:
    """Write one sample per row of the source."""
    source, spec, shared = job.source, job.spec, job.asked.shared
    surveys = {TRAIN: survey_tables(source.train, source, spec, job.progress)}
    if source.test and shared is None:
        surveys[TEST] = survey_tables(source.test, source, spec, job.progress)
    classes = _label_mapping(job, surveys)
    tokenizer = _save_tokenizer(job) if spec.is_text else None
    encoder: Encoder = (
        TextEncoder(tokenizer=tokenizer, length=job.request.max_length, spec=spec, label_ids=classes.label_ids)
        if spec.is_text
        else ImageEncoder(
            processing=_save_processing(job, shared.image_shape if shared else surveys[TRAIN].image_shape),
            precision=spec.precision,
            label_ids=classes.label_ids,
        )
    )
    rows_by_split = _assign_rows(job, surveys)
    splits = tuple(
        SplitInfo(name=name, samples=len(rows), arrays=encoder.arrays(len(rows)))
        for name, rows in rows_by_split.items()
    )
    arrays = {split.name: create_arrays(job.folder, split) for split in splits}
    total = sum(split.samples for split in splits)
    if TEST in surveys:
        _write_rows(job, encoder, source.train, {TRAIN: rows_by_split[TRAIN]}, arrays, total)
        _write_rows(job, encoder, source.test, {TEST: rows_by_split[TEST]}, arrays, total)
    else:
        _write_rows(job, encoder, source.train, rows_by_split, arrays, total)
    return _Prepared(
        labels=classes.names,
        splits=splits,
        pad_token_id=None if tokenizer is None else int(tokenizer.pad_token_id),
        notes=(
            *classes.notes,
            *(() if job.asked.local else absent_class_notes(classes, surveys[TRAIN], rows_by_split[TRAIN])),
            *(() if TEST not in rows_by_split else _overlap_notes(surveys, rows_by_split, arrays)),
        ),
        label_ids=classes.ids_by_name,
    )


def _label_mapping(job: _Preparation, surveys: dict[str, Survey]) -> LabelMapping:
    """Class ids of the labels of all splits: those that were decided elsewhere, where there are such."""
    shared, spec = job.asked.shared, job.spec
    if spec.task == "causal-lm":
        return LabelMapping(names=(), label_ids={})
    found = frozenset[str | int]().union(*(one.labels for one in surveys.values()))
    if shared is None:
        return map_labels(found, job.source, spec.labels, job.asked.local_labels)
    spelled = spell_labels(found, job.source)
    return LabelMapping(names=shared.labels, label_ids={raw: shared.label_ids[spelled[raw]] for raw in found})


def _assign_rows(job: _Preparation, surveys: dict[str, Survey]) -> dict[str, RowIndices]:
    """split -> indices of its rows, in the order in which they are stored."""
    request, seed = job.request, job.seed
    if job.asked.shared is not None:
        rows = shuffled(np.arange(len(surveys[TRAIN].content_keys)), seed, TRAIN)
        return {TRAIN: rows[: request.train_samples]}
    if TEST in surveys:
        train, test = (shuffled(np.arange(len(surveys[name].content_keys)), seed, name) for name in (TRAIN, TEST))
    else:
        train, test = split_rows(request, surveys[TRAIN].content_keys, seed)
    check_test_rows(request, len(test))
    return {TRAIN: train[: request.train_samples], TEST: test[: request.test_samples]}


def _overlap_notes(
    surveys: dict[str, Survey], rows_by_split: dict[str, RowIndices], arrays: dict[str, dict[str, Array]]
) -> tuple[str, ...]:
    """Warn about test rows that equal training rows; a source with one split keeps equal samples together."""
    if TEST not in surveys:
        return overlap_notes(arrays)
    train, test = (surveys[name].content_keys[rows_by_split[name]] for name in (TRAIN, TEST))
    return overlap_notes(arrays, int(np.isin(test, train).sum()))


def _write_rows(
    job: _Preparation,
    encoder: Encoder,
    tables: tuple[Table, ...],
    rows_by_split: dict[str, RowIndices],
    arrays: dict[str, dict[str, Array]],
    total: int,
) -> None:
    """Read the tables again in their order, and write each chunk of rows to its positions in the splits."""
    names = tuple(rows_by_split)
    end = 1 + max(int(rows.max()) for rows in rows_by_split.values())
    split_of, position = np.full(end, -1, dtype=np.int8), np.zeros(end, dtype=np.int64)
    for number, name in enumerate(names):
        split_of[rows_by_split[name]], position[rows_by_split[name]] = number, np.arange(len(rows_by_split[name]))
    every = (example for table in tables for example in examples(table, job.source, job.spec))
    kept = ((row, example) for row, example in enumerate(islice(every, end)) if split_of[row] >= 0)
    done = 0
    for chunk in _chunks(kept):
        encoded = encoder.encode([example for _, example in chunk])
        numbers = np.asarray([row for row, _ in chunk])
        for number, name in enumerate(names):
            mine = split_of[numbers] == number
            for key, rows in encoded.items():
                arrays[name][key][position[numbers[mine]]] = rows[mine]
        done += len(chunk)
        job.progress("preparing data", done, total, "samples")
    for split in rows_by_split:
        for array in arrays[split].values():
            array.flush()  # type: ignore[attr-defined]  # a memmap


def _write_packed(job: _Preparation) -> _Prepared:
    """Write blocks of concatenated documents; each document is in one split only."""
    source, request = job.source, job.request
    tokenizer = _save_tokenizer(job)
    texts = [str(one.content) for table in source.train for one in examples(table, source, job.spec)]
    keys = survey_tables(source.train, source, job.spec, job.progress).content_keys
    splits, arrays = [], {}
    limits = (request.train_samples, request.test_samples)
    dealt = (np.arange(len(texts)),) if job.asked.shared is not None else split_rows(request, keys, job.seed)
    for name, rows, limit in zip((TRAIN, TEST), dealt, limits, strict=False):
        reading = _with_progress((texts[row] for row in rows), len(rows), job.progress)
        blocks = pack_documents(tokenizer, reading, request.max_length, limit, job.spec)
        samples = len(next(iter(blocks.values())))
        if name == TEST:
            check_test_rows(request, samples)
        split = SplitInfo(name=name, samples=samples, arrays=token_arrays(samples, request.max_length, causal=True))
        arrays[name] = create_arrays(job.folder, split)
        for array_name, array in arrays[name].items():
            array[:] = blocks[array_name]
        splits.append(split)
    return _Prepared(
        labels=(),
        splits=tuple(splits),
        pad_token_id=int(tokenizer.pad_token_id),
        notes=overlap_notes(arrays) if TEST in arrays else (),
    )


def _with_progress(texts: Iterable[str], total: int, progress: Progress) -> Iterator[str]:
    for done, text in enumerate(texts):
        progress("tokenizing", done, total, "files")
        yield text


def _save_tokenizer(job: _Preparation) -> Any:
    tokenizer = open_tokenizer(job.spec)
    save_tokenizer(tokenizer, job.folder / TOKENIZER)
    return tokenizer


def _save_processing(job: _Preparation, first: tuple[int, int]) -> ImageProcessor:
    processing = open_image_processor(job.spec, job.request.image_size, first)
    processing.save(job.folder / IMAGE_PROCESSOR)
    return processing


def _byte_tokenizer_note(spec: InputSpec) -> tuple[str, ...]:
    if not (spec.is_text and spec.pretrained and spec.tokenizer is None):
        return ()
    return ("the model's folder has no tokenizer, so texts are read as bytes, on which its weights may be untrained",)


def _chunks(items: Iterable[Any]) -> Iterator[list[Any]]:
    remaining = iter(items)
    while chunk := list(islice(remaining, CHUNK_SAMPLES)):
        yield chunk


@contextmanager
def _atomic_folder(folder: Path) -> Iterator[Path]:
    """Temporary folder that is renamed to `folder` if the body succeeds, and is deleted if it fails."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise Refused(f"{folder}: it already holds something; give a new or empty folder")
    part = folder.with_name(folder.name + ".part")
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    try:
        yield part
        part.replace(folder)
    finally:
        shutil.rmtree(part, ignore_errors=True)
