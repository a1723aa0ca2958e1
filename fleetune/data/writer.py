"""Writes the `data` artifact: a folder of arrays, split by split and in chunks of samples."""

import shutil
from collections import Counter
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from fleetune.contracts import json_io
from fleetune.contracts.input_spec import IGNORE_INDEX, InputSpec
from fleetune.contracts.run_config import DataRequest
from fleetune.contracts.task import Progress, ignore_progress
from fleetune.contracts.tasks import SEQ2SEQ, predicts_labels, predicts_number, predicts_tokens
from fleetune.data.cut_files import cut_notes
from fleetune.data.examples import Example, Survey, check_task
from fleetune.data.image_processor import ImageEncoder, ImageProcessor, open_image_processor
from fleetune.data.job import (
    Job,
    PlacedExample,
    Preparation,
    Written,
    assign_rows,
    column_notes,
    placed_examples,
    saved_tokenizer,
    survey,
)
from fleetune.data.labels import LabelMapping, absent_class_notes, map_labels, spell_labels, unowned_class_notes
from fleetune.data.pairs import PairEncoder
from fleetune.data.prepared_data import (
    IDS,
    IMAGE_PROCESSOR,
    INFO,
    LABELS,
    Array,
    ArrayInfo,
    DataInfo,
    LocalInfo,
    SplitInfo,
    check_files,
    create_arrays,
    file_digests,
)
from fleetune.data.public_words import Told
from fleetune.data.sequence_writer import has_sequences, write_documents, write_sequences
from fleetune.data.sources import checked_digest, open_source, source_name
from fleetune.data.splits import TEST, TRAIN, RowIndices, overlap_notes
from fleetune.data.tokenization import TextEncoder, check_length, unknown_notes
from fleetune.data.tokenizer_file import other_split
from fleetune.errors import TryAgain
from fleetune.filesystem import rename_durably

CHUNK_SAMPLES = 512
MOST_BYTES = 512
"""Tokens of a vocabulary that may be one of bytes, which needs 260, with some room."""
NOT_HERE = "local"
"""Name of the source in a request whose data lie elsewhere."""


class Encoder(Protocol):
    """Turns examples into rows of named arrays."""

    def arrays(self, samples: int) -> tuple[ArrayInfo, ...]:
        """Describe the arrays that hold `samples` samples."""

    def encode(self, chunk: list[Example]) -> dict[str, Array]:
        """Return the rows of a chunk by array name, first axis = position in the chunk."""


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
    check_lengths(request, spec)
    source = open_source(request, spec.task)
    check_task(request, source, spec)
    with _atomic_folder(folder) as part:
        job = Job(asked=asked, source=source, folder=part)
        written = _written(job)
        info = DataInfo(
            task=spec.task,
            labels=written.labels,
            splits=written.splits,
            source=source_name(request),
            digest=checked_digest(request, asked.expected_digest, images=not spec.is_text),
            seed=asked.seed,
            pad_token_id=written.pad_token_id,
            notes=(
                *_input_notes(spec),
                *_split_notes(job),
                *other_split(job),
                *source.notes,
                *cut_notes(source, spec.task),
                *written.notes,
            ),
            chats=written.chats,
            systems=tuple(map(dict, written.systems)) if written.chats else None,
            local=_local_info(asked, written),
            files=file_digests(part),
        )
        json_io.write(info, part / INFO)


def ensure_data(asked: Preparation, folder: Path) -> None:
    """Write prepared data into `folder`, unless they are there as they were written; damaged ones are removed first."""
    if (folder / INFO).exists():
        try:
            check_files(folder)
            return
        except TryAgain:
            shutil.rmtree(folder)
    write_data(asked, folder)


def check_lengths(request: DataRequest, spec: InputSpec) -> None:
    """Refuse lengths beyond the positions of the model, and bytes for one that has learned words."""
    if spec.is_text and spec.pretrained and spec.tokenizer is None and (spec.vocab_size or 0) > MOST_BYTES:
        raise Told(
            "data: the model has no tokenizer file in its folder, and its vocabulary of {vocab_size} tokens is not one "
            "of bytes; copy its tokenizer there from where it comes: tokenizer.json and tokenizer_config.json, or "
            "vocab.txt, vocab.json and merges.txt, tokenizer.model, or spiece.model",
            vocab_size=spec.vocab_size,
        )
    if spec.is_text and spec.max_positions is not None and request.max_length > spec.max_positions:
        raise Told(
            "data: max_length is {max_length}, but the model has {max_positions} positions; set data.max_length to "
            "at most {max_positions}",
            max_length=request.max_length,
            max_positions=spec.max_positions,
        )
    if spec.task == SEQ2SEQ and spec.max_positions is not None and (request.target_length or 0) > spec.max_positions:
        raise Told(
            "data: target_length is {target_length}, but the model has {max_positions} positions; set "
            "data.target_length to at most {max_positions}",
            target_length=request.target_length,
            max_positions=spec.max_positions,
        )


def read_through(request: DataRequest, spec: InputSpec, seed: int) -> None:
    """Read and check every row, and number the classes, as `write_data` does first, and write nothing."""
    check_lengths(request, spec)
    asked = Preparation(request=request, spec=spec, seed=seed)
    job = Job(asked=asked, source=open_source(request, spec.task), folder=Path())
    check_task(request, job.source, spec)
    if not job.source.packed:
        _label_mapping(job, survey(job))


def _written(job: Job) -> Written:
    if job.source.packed:
        return write_documents(job)
    return write_sequences(job) if has_sequences(job) else _write_samples(job)


def _local_info(asked: Preparation, written: Written) -> LocalInfo | None:
    if not asked.local:
        return None
    request = replace(asked.request, source=NOT_HERE, files=(), validation=None, local={})
    return LocalInfo(request=request, label_ids=dict(written.label_ids), sources=asked.local)


def _write_samples(job: Job) -> Written:
    """Write one sample per row of the source."""
    spec, shared = job.spec, job.asked.shared
    surveys = survey(job)
    classes = _label_mapping(job, surveys)
    tokenizer = saved_tokenizer(job) if spec.is_text else None
    encoder = (
        _text_encoder(job, tokenizer, classes)
        if spec.is_text
        else ImageEncoder(
            processing=_save_processing(job, shared.image_shape if shared else surveys[TRAIN].image_shape),
            precision=spec.precision,
            task=spec.task,
            classes=classes,
        )
    )
    rows_by_split, fewer = assign_rows(job, surveys)
    splits = tuple(
        SplitInfo(name=name, samples=len(rows), arrays=encoder.arrays(len(rows)))
        for name, rows in rows_by_split.items()
    )
    arrays = {split.name: create_arrays(job.folder, split) for split in splits}
    _write_rows(job, encoder, rows_by_split, arrays)
    texts, untaught = sum(map(len, rows_by_split.values())), list[str]()
    if predicts_tokens(spec.task):
        splits, untaught = _without_untaught(job, encoder, splits, arrays, rows_by_split)
    return Written(
        labels=classes.names,
        splits=splits,
        pad_token_id=None if tokenizer is None else int(tokenizer.pad_token_id),
        notes=(
            *classes.notes,
            *column_notes(surveys),
            *fewer,
            *(() if isinstance(encoder, ImageEncoder) else encoder.notes(texts)),
            *(() if tokenizer is None else unknown_notes(tokenizer, arrays[TRAIN][IDS])),
            *untaught,
            *_dim_notes(surveys.values()),
            *_training_notes(job, classes, surveys, rows_by_split, arrays),
        ),
        label_ids=classes.ids_by_name,
    )


def _text_encoder(job: Job, tokenizer: Any, classes: LabelMapping) -> TextEncoder | PairEncoder:
    request, spec = job.request, job.spec
    if spec.task == SEQ2SEQ:
        length = request.target_length or request.max_length
        check_length(tokenizer, "target_length" if request.target_length else "max_length", length)
        check_length(tokenizer, "max_length", request.max_length)
        return PairEncoder(tokenizer=tokenizer, length=request.max_length, target_length=length, spec=spec)
    if spec.task != "causal-lm":
        check_length(tokenizer, "max_length", request.max_length)
    return TextEncoder(tokenizer=tokenizer, length=request.max_length, spec=spec, classes=classes)


def _dim_notes(surveys: Collection[Survey]) -> Iterator[str]:
    """A sentence if most images look alike to a model, as do those whose levels end far below white."""
    dim, total = sum(one.dim for one in surveys), sum(len(one.content_keys) for one in surveys)
    if 2 * dim > total:
        yield (
            f"{dim} of {total} images are all but black, or all but white, in every pixel, as images of 16 bits are "
            "that use 12 or fewer; scale their levels so that white is 65535"
        )


def _label_mapping(job: Job, surveys: dict[str, Survey]) -> LabelMapping:
    """Class ids of the labels of all splits: those that were decided elsewhere, where there are such."""
    shared, spec = job.asked.shared, job.spec
    if predicts_tokens(spec.task):
        return LabelMapping(names=(), label_ids={})
    found = Counter[str | int]()
    for one in surveys.values():
        rows = np.bincount(one.label_indices, minlength=len(one.labels))
        found.update(dict(zip(one.labels, rows.tolist(), strict=True)))
    if predicts_number(spec.task):
        return LabelMapping(names=(job.source.label_column,), label_ids={})
    if shared is None:
        several, tested = predicts_labels(spec.task), job.request.only_tested
        _refuse_ids(job, surveys[TRAIN])
        return map_labels(found, job.source, spec, job.asked.local_labels, several, tested)
    spelled = spell_labels(frozenset(found), job.source)
    return LabelMapping(names=shared.labels, label_ids={raw: shared.label_ids[spelled[raw]] for raw in found})


LEAST_ROWS = 20
"""In fewer rows, labels that are all different may be classes."""


def _refuse_ids(job: Job, found: Survey) -> None:
    """Refuse labels of which no two rows have the same: they are names or numbers of rows, and nothing is learned."""
    if len(found.label_indices) == len(found.labels) >= LEAST_ROWS and not job.request.only_tested:
        raise Told(
            "{}: each of the {rows} rows has another label in column {column!r}, as if it named the rows; set "
            "data.label_column to the column of classes",
            job.source.train[0].name,
            rows=len(found.labels),
            column=job.source.label_column,
        )


def _training_notes(
    job: Job,
    classes: LabelMapping,
    surveys: dict[str, Survey],
    rows_by_split: dict[str, RowIndices],
    arrays: dict[str, dict[str, Array]],
) -> Iterator[str]:
    """Sentences about classes that nobody trains, and test rows that somebody does; of rows that lie on devices nobody
    here can tell the second."""
    if job.asked.local:
        yield from unowned_class_notes(classes, job.asked.local_labels)
    elif not job.request.only_tested:
        if classes.label_ids:
            yield from absent_class_notes(classes, arrays[TRAIN][LABELS])
        for split in (name for name in rows_by_split if name != TRAIN):
            yield from _overlap_notes(surveys, rows_by_split, arrays, split)


def _overlap_notes(
    surveys: dict[str, Survey], rows_by_split: dict[str, RowIndices], arrays: dict[str, dict[str, Array]], split: str
) -> tuple[str, ...]:
    """Warn about rows of a split that equal training rows; a source with one split keeps equal samples together."""
    if split not in surveys:
        return overlap_notes(arrays)
    train, test = (surveys[name].content_keys[rows_by_split[name]] for name in (TRAIN, split))
    return overlap_notes(arrays, int(np.isin(test, train).sum()), split)


def _write_rows(
    job: Job, encoder: Encoder, rows_by_split: dict[str, RowIndices], arrays: dict[str, dict[str, Array]]
) -> None:
    """Encode the rows chunk by chunk, each to its position in its split."""
    done, total = 0, sum(map(len, rows_by_split.values()))
    for chunk in _chunks(placed_examples(job, rows_by_split)):
        encoded = encoder.encode([example for *_, example in chunk])
        positions = np.asarray([position for _, position, _ in chunk])
        for name in rows_by_split:
            mine = np.asarray([split == name for split, *_ in chunk])
            for key, rows in encoded.items():
                arrays[name][key][positions[mine]] = rows[mine]
        done += len(chunk)
        job.progress("preparing data", done, total, "samples")
    for split in rows_by_split:
        for array in arrays[split].values():
            array.flush()  # type: ignore[attr-defined]  # a memmap


def _without_untaught(
    job: Job,
    encoder: Encoder,
    splits: tuple[SplitInfo, ...],
    arrays: dict[str, dict[str, Array]],
    rows_by_split: dict[str, RowIndices],
) -> tuple[tuple[SplitInfo, ...], list[str]]:
    """Splits whose arrays are written anew without the samples that hold no token to learn, which leave the rows too,
    and sentences that count them; Refused: no other is left."""
    first = int(job.spec.task != SEQ2SEQ)  # nothing comes before the first token of a text
    kept, notes = [], []
    for split in splits:
        labels = arrays[split.name][LABELS]
        blocks = (labels[row : row + CHUNK_SAMPLES, first:] for row in range(0, split.samples, CHUNK_SAMPLES))
        taught = np.flatnonzero(np.concatenate([(block != IGNORE_INDEX).any(axis=1) for block in blocks]))
        if not len(taught):
            raise Told(
                "data: no {split} sample has a token to learn, which is one after another; give longer texts, or a "
                "tokenizer with an eos_token, which ends them",
                split=split.name,
            )
        fewer = replace(split, samples=len(taught), arrays=encoder.arrays(len(taught)))
        kept.append(fewer)
        if fewer == split:
            continue
        notes.append(
            f"{split.samples - len(taught)} of {split.samples} {split.name} samples are left out: no token to learn"
        )
        rows_by_split[split.name] = rows_by_split[split.name][taught]
        whole = arrays[split.name]
        shutil.rmtree(job.folder / split.name)  # whose arrays stay mapped
        arrays[split.name] = create_arrays(job.folder, fewer)
        for name, array in arrays[split.name].items():
            for row in range(0, len(taught), CHUNK_SAMPLES):
                array[row : row + CHUNK_SAMPLES] = whole[name][taught[row : row + CHUNK_SAMPLES]]
            array.flush()  # type: ignore[attr-defined]  # a memmap
    return tuple(kept), notes


def _chunks(items: Iterator[PlacedExample]) -> Iterator[list[PlacedExample]]:
    while chunk := list(islice(items, CHUNK_SAMPLES)):
        yield chunk


def _save_processing(job: Job, first: tuple[int, int]) -> ImageProcessor:
    processing = open_image_processor(job.spec, job.request.image_size, first)
    processing.save(job.folder / IMAGE_PROCESSOR)
    return processing


def _input_notes(spec: InputSpec) -> tuple[str, ...]:
    """Tell of a pretrained folder that lacks what says how its model reads texts or images."""
    if not spec.pretrained:
        return ()
    if spec.is_text and spec.tokenizer is None:
        return (
            "the model's folder has no tokenizer, so texts are read as bytes, on which its weights may be untrained",
        )
    if not spec.is_text and spec.image_processor is None:
        told = f"mean {spec.image_mean[0]:g} and deviation {spec.image_std[0]:g} of pixels from 0 to 1"
        return (
            f"the model's folder has no preprocessor_config.json, so images are resized and normalised by {told}, on "
            "which its weights may be untrained",
        )
    return ()


def _split_notes(job: Job) -> Iterator[str]:
    """Tell of a model of an earlier run that its test rows may be others, as they are drawn by how many there are."""
    if job.spec.continued and not (TEST in job.tables or job.request.by_content or job.asked.shared):
        yield (
            "the model to start from is that of an earlier run, which may have trained on what is tested on here, if "
            "the data were others then; name what to test on (data.validation), or set data.split_by_content each time"
        )


@contextmanager
def _atomic_folder(folder: Path) -> Iterator[Path]:
    """Temporary folder that is renamed to `folder` if the body succeeds, and is deleted if it fails.

    All of it is on disk before it has its name, so that no power cut leaves zeros for data.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise Told("{}: it already holds something; give a new or empty folder", folder)
    part = folder.with_name(folder.name + ".part")
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    try:
        yield part
        rename_durably(part, folder)
    finally:
        shutil.rmtree(part, ignore_errors=True)
