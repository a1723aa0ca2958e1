"""From a source to a folder of arrays: check every row, deal rows to splits, encode chunk by chunk."""

import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from fleetune.contracts import wire
from fleetune.contracts.run_config import DataRequest
from fleetune.contracts.task import Progress, quiet
from fleetune.data.classes import Classes, number_classes
from fleetune.data.digest import content_digest
from fleetune.data.encoders import Encoder, ImageEncoder, TextEncoder, token_arrays
from fleetune.data.examples import check_fits, examples
from fleetune.data.folder import IMAGE_PROCESSOR, INFO, TOKENIZER, Array, DataInfo, SplitInfo, create
from fleetune.data.needs import InputNeeds
from fleetune.data.oddities import absent_classes, shared_rows
from fleetune.data.packing import pack
from fleetune.data.processing import Processing, open_processing
from fleetune.data.sources import open_source
from fleetune.data.splits import TEST, TRAIN, Numbers, hold_out, prove_test_rows, shuffled
from fleetune.data.survey import Survey, survey
from fleetune.data.table import Source, Table
from fleetune.data.tokens import open_tokenizer, save_tokenizer
from fleetune.errors import Refused

CHUNK_SAMPLES = 512


@dataclass(frozen=True, kw_only=True)
class _Job:
    """One preparation: what is asked, from what, into which folder."""

    request: DataRequest
    needs: InputNeeds
    source: Source
    folder: Path
    seed: int
    progress: Progress


@dataclass(frozen=True, kw_only=True)
class _Written:
    labels: tuple[str, ...]
    splits: tuple[SplitInfo, ...]
    pad_token_id: int | None
    notes: tuple[str, ...]


def prepare(request: DataRequest, needs: InputNeeds, folder: Path, seed: int, progress: Progress = quiet) -> None:
    """Write the `data` artifact for a task into `folder`, which must be new or empty.

    Same source, needs and seed: the same bytes. Refused, and nothing left behind, where the source cannot serve.
    """
    if needs.is_text and needs.max_positions is not None and request.max_length > needs.max_positions:
        raise Refused(
            f"data: max_length is {request.max_length}, but the model has {needs.max_positions} positions; "
            f"set data.max_length to at most {needs.max_positions}"
        )
    source = open_source(request)
    check_fits(request, source, needs)
    with _new_folder(folder) as part:
        job = _Job(request=request, needs=needs, source=source, folder=part, seed=seed, progress=progress)
        written = _write_packed(job) if source.packed else _write_samples(job)
        info = DataInfo(
            task=needs.task,
            labels=written.labels,
            splits=written.splits,
            source=request.source,
            digest=content_digest(request),
            seed=seed,
            pad_token_id=written.pad_token_id,
            notes=(*_on_bytes(needs), *written.notes),
        )
        wire.write(info, part / INFO)


def _write_samples(job: _Job) -> _Written:
    """One sample per row."""
    source, needs = job.source, job.needs
    surveys = {TRAIN: survey(source.train, source, needs, job.progress)}
    if source.test:
        surveys[TEST] = survey(source.test, source, needs, job.progress)
    classes = Classes(names=(), numbers={})
    if needs.task != "causal-lm":
        found = frozenset[str | int]().union(*(one.labels for one in surveys.values()))
        classes = number_classes(found, source, needs.labels)
    tokenizer = _saved_tokenizer(job) if needs.is_text else None
    encoder: Encoder = (
        TextEncoder(tokenizer=tokenizer, length=job.request.max_length, needs=needs, numbers=classes.numbers)
        if needs.is_text
        else ImageEncoder(
            processing=_saved_processing(job, surveys[TRAIN]), precision=needs.precision, numbers=classes.numbers
        )
    )
    dealt = _deal(job.request, surveys, job.seed)
    splits = tuple(
        SplitInfo(name=name, samples=len(rows), arrays=encoder.arrays(len(rows))) for name, rows in dealt.items()
    )
    out = {split.name: create(job.folder, split) for split in splits}
    total = sum(split.samples for split in splits)
    if source.test:
        _stream(job, encoder, source.train, {TRAIN: dealt[TRAIN]}, out, total)
        _stream(job, encoder, source.test, {TEST: dealt[TEST]}, out, total)
    else:
        _stream(job, encoder, source.train, dealt, out, total)
    return _Written(
        labels=classes.names,
        splits=splits,
        pad_token_id=None if tokenizer is None else int(tokenizer.pad_token_id),
        notes=(*classes.notes, *absent_classes(classes, surveys[TRAIN], dealt[TRAIN]), *_shared(surveys, dealt, out)),
    )


def _deal(request: DataRequest, surveys: dict[str, Survey], seed: int) -> dict[str, Numbers]:
    """split -> numbers of its rows, in the order in which they are stored."""
    if TEST in surveys:
        train, test = (shuffled(np.arange(len(surveys[name].keys)), seed, name) for name in (TRAIN, TEST))
    else:
        train, test = hold_out(request, surveys[TRAIN].keys, seed)
    prove_test_rows(request, len(test))
    return {TRAIN: train[: request.train_samples], TEST: test[: request.test_samples]}


def _shared(surveys: dict[str, Survey], dealt: dict[str, Numbers], out: dict[str, dict[str, Array]]) -> tuple[str, ...]:
    """Where one table was dealt to both splits, equal samples were kept together."""
    if TEST not in surveys:
        return shared_rows(out)
    train, test = (surveys[name].keys[dealt[name]] for name in (TRAIN, TEST))
    return shared_rows(out, int(np.isin(test, train).sum()))


def _stream(
    job: _Job,
    encoder: Encoder,
    tables: tuple[Table, ...],
    dealt: dict[str, Numbers],
    out: dict[str, dict[str, Array]],
    total: int,
) -> None:
    """Read the tables once more, in their order, and write every chunk of rows to where its split wants it."""
    names = tuple(dealt)
    end = 1 + max(int(rows.max()) for rows in dealt.values())
    owner, place = np.full(end, -1, dtype=np.int8), np.zeros(end, dtype=np.int64)
    for number, name in enumerate(names):
        owner[dealt[name]], place[dealt[name]] = number, np.arange(len(dealt[name]))
    every = (example for table in tables for example in examples(table, job.source, job.needs))
    kept = ((row, example) for row, example in enumerate(islice(every, end)) if owner[row] >= 0)
    done = 0
    for chunk in _chunks(kept):
        encoded = encoder.encode([example for _, example in chunk])
        numbers = np.asarray([row for row, _ in chunk])
        for number, name in enumerate(names):
            mine = owner[numbers] == number
            for key, rows in encoded.items():
                out[name][key][place[numbers[mine]]] = rows[mine]
        done += len(chunk)
        job.progress("preparing data", done, total, "samples")
    for split in dealt:
        for array in out[split].values():
            array.flush()  # type: ignore[attr-defined]  # a memmap


def _write_packed(job: _Job) -> _Written:
    """Blocks of documents; no document is in two splits."""
    source, request = job.source, job.request
    tokenizer = _saved_tokenizer(job)
    texts = [str(one.content) for table in source.train for one in examples(table, source, job.needs)]
    keys = survey(source.train, source, job.needs, job.progress).keys
    splits, out = [], {}
    limits = (request.train_samples, request.test_samples)
    for name, rows, limit in zip((TRAIN, TEST), hold_out(request, keys, job.seed), limits, strict=True):
        reading = _told((texts[row] for row in rows), len(rows), job.progress)
        blocks = pack(tokenizer, reading, request.max_length, limit, job.needs)
        samples = len(next(iter(blocks.values())))
        if name == TEST:
            prove_test_rows(request, samples)
        split = SplitInfo(name=name, samples=samples, arrays=token_arrays(samples, request.max_length, causal=True))
        out[name] = create(job.folder, split)
        for array_name, array in out[name].items():
            array[:] = blocks[array_name]
        splits.append(split)
    return _Written(labels=(), splits=tuple(splits), pad_token_id=int(tokenizer.pad_token_id), notes=shared_rows(out))


def _told(texts: Iterable[str], total: int, progress: Progress) -> Iterator[str]:
    for done, text in enumerate(texts):
        progress("tokenizing", done, total, "files")
        yield text


def _saved_tokenizer(job: _Job) -> Any:
    tokenizer = open_tokenizer(job.needs)
    save_tokenizer(tokenizer, job.folder / TOKENIZER)
    return tokenizer


def _saved_processing(job: _Job, found: Survey) -> Processing:
    processing = open_processing(job.needs, job.request.image_size, found.image_shape)
    processing.save(job.folder / IMAGE_PROCESSOR)
    return processing


def _on_bytes(needs: InputNeeds) -> tuple[str, ...]:
    if not (needs.is_text and needs.pretrained and needs.tokenizer is None):
        return ()
    return ("the model's folder has no tokenizer, so texts are read as bytes, which its weights may never have seen",)


def _chunks(items: Iterable[Any]) -> Iterator[list[Any]]:
    remaining = iter(items)
    while chunk := list(islice(remaining, CHUNK_SAMPLES)):
        yield chunk


@contextmanager
def _new_folder(folder: Path) -> Iterator[Path]:
    """A folder beside the wanted one, which takes its place when the body ends well and vanishes when it does not."""
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
