"""Writes the `data` artifact: a folder of arrays, split by split and in chunks of samples."""

import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
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
from fleetune.data.labels import LabelMapping, absent_class_notes, map_labels
from fleetune.data.prepared_data import (
    IMAGE_PROCESSOR,
    INFO,
    TOKENIZER,
    Array,
    ArrayInfo,
    DataInfo,
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


class Encoder(Protocol):
    """Turns examples into rows of named arrays."""

    def arrays(self, samples: int) -> tuple[ArrayInfo, ...]:
        """Describe the arrays that hold `samples` samples."""

    def encode(self, chunk: list[Example]) -> dict[str, Array]:
        """Return the rows of a chunk by array name, first axis = position in the chunk."""


@dataclass(frozen=True, kw_only=True)
class _Preparation:
    """Inputs and output folder of one preparation."""

    request: DataRequest
    spec: InputSpec
    source: DataSource
    folder: Path
    seed: int
    progress: Progress


@dataclass(frozen=True, kw_only=True)
class _Prepared:
    """Arrays of all splits as written, for data.json."""

    labels: tuple[str, ...]
    splits: tuple[SplitInfo, ...]
    pad_token_id: int | None
    notes: tuple[str, ...]


def prepare_data(
    request: DataRequest,
    spec: InputSpec,
    folder: Path,
    seed: int,
    progress: Progress = ignore_progress,
    expected_digest: str | None = None,
) -> None:
    """Write the `data` artifact for a task into `folder`, which must be new or empty.

    The same source, spec and seed give the same bytes. Raises Refused for an unsuitable source, and TryAgain for a file
    or folder whose content is not that of `expected_digest` once it was read; both leave no files.
    """
    if spec.is_text and spec.max_positions is not None and request.max_length > spec.max_positions:
        raise Refused(
            f"data: max_length is {request.max_length}, but the model has {spec.max_positions} positions; "
            f"set data.max_length to at most {spec.max_positions}"
        )
    source = open_source(request)
    check_task(request, source, spec)
    with _atomic_folder(folder) as part:
        job = _Preparation(request=request, spec=spec, source=source, folder=part, seed=seed, progress=progress)
        written = _write_packed(job) if source.packed else _write_samples(job)
        info = DataInfo(
            task=spec.task,
            labels=written.labels,
            splits=written.splits,
            source=source_name(request.source),
            digest=checked_digest(request, expected_digest),
            seed=seed,
            pad_token_id=written.pad_token_id,
            notes=(*_byte_tokenizer_note(spec), *written.notes),
        )
        json_io.write(info, part / INFO)


def _write_samples(job: _Preparation) -> _Prepared:
    """Write one sample per row of the source."""
    source, spec = job.source, job.spec
    surveys = {TRAIN: survey_tables(source.train, source, spec, job.progress)}
    if source.test:
        surveys[TEST] = survey_tables(source.test, source, spec, job.progress)
    classes = LabelMapping(names=(), label_ids={})
    if spec.task != "causal-lm":
        found = frozenset[str | int]().union(*(one.labels for one in surveys.values()))
        classes = map_labels(found, source, spec.labels)
    tokenizer = _save_tokenizer(job) if spec.is_text else None
    encoder: Encoder = (
        TextEncoder(tokenizer=tokenizer, length=job.request.max_length, spec=spec, label_ids=classes.label_ids)
        if spec.is_text
        else ImageEncoder(
            processing=_save_processing(job, surveys[TRAIN]), precision=spec.precision, label_ids=classes.label_ids
        )
    )
    rows_by_split = _assign_rows(job.request, surveys, job.seed)
    splits = tuple(
        SplitInfo(name=name, samples=len(rows), arrays=encoder.arrays(len(rows)))
        for name, rows in rows_by_split.items()
    )
    arrays = {split.name: create_arrays(job.folder, split) for split in splits}
    total = sum(split.samples for split in splits)
    if source.test:
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
            *absent_class_notes(classes, surveys[TRAIN], rows_by_split[TRAIN]),
            *_overlap_notes(surveys, rows_by_split, arrays),
        ),
    )


def _assign_rows(request: DataRequest, surveys: dict[str, Survey], seed: int) -> dict[str, RowIndices]:
    """split -> indices of its rows, in the order in which they are stored."""
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
    for name, rows, limit in zip((TRAIN, TEST), split_rows(request, keys, job.seed), limits, strict=True):
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
        labels=(), splits=tuple(splits), pad_token_id=int(tokenizer.pad_token_id), notes=overlap_notes(arrays)
    )


def _with_progress(texts: Iterable[str], total: int, progress: Progress) -> Iterator[str]:
    for done, text in enumerate(texts):
        progress("tokenizing", done, total, "files")
        yield text


def _save_tokenizer(job: _Preparation) -> Any:
    tokenizer = open_tokenizer(job.spec)
    save_tokenizer(tokenizer, job.folder / TOKENIZER)
    return tokenizer


def _save_processing(job: _Preparation, found: Survey) -> ImageProcessor:
    processing = open_image_processor(job.spec, job.request.image_size, found.image_shape)
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
