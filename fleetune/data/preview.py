"""A look at prepared data: counts, lengths, and samples as the model sees them, with what carries loss."""

from dataclasses import field
from typing import Any

import numpy as np

from fleetune.contracts.input_spec import IGNORE_INDEX
from fleetune.contracts.record import record
from fleetune.contracts.tasks import predicts_labels, predicts_number
from fleetune.data.prepared_data import (
    DECODER_IDS,
    IDS,
    LABELS,
    MASK,
    PIXELS,
    POSITIONS,
    Array,
    PreparedData,
    sample_spans,
)

QUANTILES = {"shortest": 0.0, "median": 0.5, "90 %": 0.9, "99 %": 0.99, "longest": 1.0}
CHUNK_ROWS = 1024


@record
class Piece:
    """A run of tokens, decoded."""

    text: str
    loss: bool
    """Whether they carry loss."""


@record
class SamplePreview:
    """One sample as the model sees it."""

    row: int
    """Row of the split; samples of a packed row have the same."""
    tokens: int = 0
    """Without padding; 0 for images."""
    loss_tokens: int = 0
    """Tokens that carry loss; 0 for classification."""
    pieces: tuple[Piece, ...] = ()
    """Empty for images."""
    label: str = ""
    """Name of its class; empty where tokens are predicted."""
    shape: tuple[int, ...] = ()
    """Channels, height and width of an image."""


@record
class SplitPreview:
    """A split in numbers."""

    name: str
    samples: int
    rows: int
    """Sequences that are computed; fewer than samples if they are packed."""
    tokens: dict[str, int] = field(default_factory=dict)
    """Quantile of the samples' lengths -> tokens; empty for images."""
    loss_share: float | None = None
    """Share of the tokens, without padding, that carry loss; None for classification."""
    padding_share: float | None = None
    """Share of the computed tokens that are padding; None for images."""
    labels: dict[str, int] = field(default_factory=dict)
    """Class -> samples; empty where tokens are predicted."""


@record
class DataPreview:
    """What `fleetune data` shows."""

    task: str
    source: str
    notes: tuple[str, ...]
    splits: tuple[SplitPreview, ...]
    samples: tuple[SamplePreview, ...]
    """The first ones of the training split."""


def preview(data: PreparedData, samples: int) -> DataPreview:
    """Look at prepared data; `samples` of the training split are decoded."""
    splits = tuple(_split(data, split.name) for split in data.info.splits)
    shown = _samples(data, samples)
    return DataPreview(task=data.task, source=data.info.source, notes=data.info.notes, splits=splits, samples=shown)


def _split(data: PreparedData, name: str) -> SplitPreview:
    rows, lengths, loss_tokens = data.size(name), list[int](), 0
    classes = np.zeros(len(data.labels), dtype=np.int64)
    length = written = 0
    for first in range(0, rows, CHUNK_ROWS):
        chunk = data.rows(name, range(first, min(first + CHUNK_ROWS, rows)))
        if predicts_labels(data.task):
            classes += chunk[LABELS].sum(axis=0).astype(np.int64)
        elif data.labels and not predicts_number(data.task):
            classes += np.bincount(chunk[LABELS], minlength=len(data.labels))
        elif not data.labels:
            own = chunk[LABELS] if DECODER_IDS in chunk else chunk[LABELS][:, 1:]
            loss_tokens += int((own != IGNORE_INDEX).sum())
        written += int((chunk[LABELS] != IGNORE_INDEX).sum()) if DECODER_IDS in chunk else 0
        if PIXELS not in chunk:
            length = chunk[IDS].shape[1]
            lengths += [end - start for row in range(len(chunk[IDS])) for start, end in _spans(chunk, row)]
    found = SplitPreview(
        name=name,
        samples=len(lengths) or rows,
        rows=rows,
        labels={}
        if predicts_number(data.task)
        else {label: int(count) for label, count in zip(data.labels, classes, strict=True)},
    )
    if not lengths:
        return found
    ordered, total = sorted(lengths), sum(lengths)
    return SplitPreview(
        name=name,
        samples=found.samples,
        rows=rows,
        tokens={quantile: ordered[round(share * (len(ordered) - 1))] for quantile, share in QUANTILES.items()},
        loss_share=None if data.labels else loss_tokens / (total + written),
        padding_share=1 - total / (rows * length),
        labels=found.labels,
    )


def _spans(rows: dict[str, Array], row: int) -> list[tuple[int, int]]:
    """Tokens [first, end) of the samples of a row."""
    return sample_spans(rows[POSITIONS][row]) if POSITIONS in rows else [(0, int(rows[MASK][row].sum()))]


def _samples(data: PreparedData, most: int) -> tuple[SamplePreview, ...]:
    rows = data.rows("train", range(min(most, data.size("train"))))
    if PIXELS in rows:
        return tuple(
            SamplePreview(row=row, label=_label(data, label), shape=tuple(pixels.shape))
            for row, (label, pixels) in enumerate(zip(rows[LABELS], rows[PIXELS], strict=True))
        )
    tokenizer = _tokenizer(data)
    found = [_sample(tokenizer, data, rows, row, span) for row in range(len(rows[IDS])) for span in _spans(rows, row)]
    return tuple(found[:most])


def _label(data: PreparedData, found: Any) -> str:
    """A sample's class, its number, or the labels that it has."""
    if predicts_number(data.task):
        return f"{float(found):g}"
    if predicts_labels(data.task):
        return ", ".join(name for name, has in zip(data.labels, found, strict=True) if has) or "none"
    return data.labels[int(found)]


def _sample(
    tokenizer: Any, data: PreparedData, rows: dict[str, Array], row: int, span: tuple[int, int]
) -> SamplePreview:
    first, end = span
    ids = rows[IDS][row][first:end]
    if DECODER_IDS in rows:
        target = rows[LABELS][row][rows[LABELS][row] != IGNORE_INDEX]
        pieces = (Piece(text=tokenizer.decode(ids), loss=False), Piece(text=tokenizer.decode(target), loss=True))
        return SamplePreview(row=row, tokens=len(ids) + len(target), loss_tokens=len(target), pieces=pieces)
    carries = np.zeros(len(ids), dtype=bool)
    if not data.labels:
        carries[1:] = rows[LABELS][row][first + 1 : end] != IGNORE_INDEX
    borders = [0, *(np.flatnonzero(np.diff(carries)) + 1).tolist(), len(ids)]
    return SamplePreview(
        row=row,
        tokens=len(ids),
        loss_tokens=int(carries.sum()),
        pieces=tuple(
            Piece(text=tokenizer.decode(ids[start:stop]), loss=bool(carries[start]))
            for start, stop in zip(borders, borders[1:], strict=False)
            if start < stop
        ),
        label=_label(data, rows[LABELS][row]) if data.labels else "",
    )


def _tokenizer(data: PreparedData) -> Any:
    from transformers import AutoTokenizer  # takes seconds to import

    return AutoTokenizer.from_pretrained(data.tokenizer, local_files_only=True, trust_remote_code=False)
