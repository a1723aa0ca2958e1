"""Examples: validated table rows, and a first pass over all of them before anything is written."""

import hashlib
import json
import math
import re
from array import array
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from fleetune.contracts.input_spec import InputSpec
from fleetune.contracts.run_config import TEXT, DataRequest
from fleetune.contracts.task import Progress
from fleetune.contracts.tasks import SEQ2SEQ, predicts_labels, predicts_number
from fleetune.data.class_features import composed
from fleetune.data.dialogues import (
    ANSWER,
    INSTRUCTION,
    MESSAGE_COLUMNS,
    OUTPUT,
    PROMPT,
    Chat,
    Completion,
    Dialogue,
    Unanswered,
    check_answers,
    has_pairs,
    read_dialogue,
    read_pair,
    row_format,
)
from fleetune.data.images import Image, as_image
from fleetune.data.public_words import Told, inside
from fleetune.data.side_columns import SideColumns, check_halves, is_empty_text
from fleetune.data.tables import UNNAMED, CsvTable, DataSource, Table, row_place
from fleetune.errors import Refused

RawLabel = str | int
"""A label as the source spells it."""
SampleLabel = RawLabel | float | tuple[RawLabel, ...]
"""What a sample is to be said of: its class, a number, or the labels that it has."""
SEPARATOR = "|"
"""Between labels that are given as one text."""
BOOLEANS = ("True", "TRUE", "False", "FALSE")
"""Truth values as CSV files have them; they become `true` and `false`, as in JSON."""
HALF = re.compile("[\ud800-\udfff]")
"""Surrogates: JSON can hold one without the other, and they stand for bytes of arguments that are no UTF-8."""
LARGEST = float(np.finfo(np.float32).max)
"""The largest number that can be learned."""
REPORT_EVERY = 2000
DIM = 1 / 16
"""Share of the levels from black to white; 12 bits of 16 are no more."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Example:
    """One sample before tokenization or image processing; `label` is None for causal-lm and seq2seq."""

    location: str
    content: str | Image | Dialogue
    label: SampleLabel | None

    def __post_init__(self) -> None:
        """Refuse halves of characters, of which no tokenizer and no file takes any."""
        said = self.content.spelled if isinstance(self.content, Chat | Completion) else self.content
        for text in (said, *(self.label if isinstance(self.label, tuple) else (self.label,))):
            half = HALF.search(text) if isinstance(text, str) and not text.isascii() else None
            if half is not None:
                raise Told(
                    "{location}: it holds half a character ({}), which is no text; mend it or leave it out",
                    ascii(half.group()),
                    location=self.location,
                )


def check_task(request: DataRequest, source: DataSource, spec: InputSpec) -> None:
    """Raise Refused if the source cannot serve the task: a column is missing, or the source is packed text."""
    if source.packed and spec.task != "causal-lm":
        raise Told(
            "data: {source} is text without labels, for causal-lm; for {task} use docstrings",
            source=request.source,
            task=spec.task,
        )
    if request.packing and (source.packed or spec.task != "causal-lm"):
        why = f"{request.source} fills sequences anyway" if source.packed else f"the task is {spec.task}"
        raise Told("data: packing is for rows of causal-lm, but {why}; leave data.packing out", why=why)
    if spec.task == "causal-lm" and request.max_length < 2:
        raise Told("data: max_length is 1, and a token is learned from the ones before it; give at least 2")
    column = source.text_column if spec.is_text else source.image_column
    said = source.target_column if spec.task == SEQ2SEQ else source.label_column
    wanted = [column] if spec.task == "causal-lm" else [column, said]
    for table in source.tables:
        if dialogue_format(table, source, spec) is not None or _has_pairs(table, source, spec):
            continue
        for name in wanted:
            if table.columns and name not in table.columns:
                asked = "target" if spec.task == SEQ2SEQ else "label"
                kind = asked if name == said else ("text" if spec.is_text else "image")
                raise Told(
                    "{}: no column {name!r} for {task}; it has {} (choose with data.{kind}_column{others})",
                    table.name,
                    ", ".join(table.columns),
                    name=name,
                    kind=kind,
                    task=spec.task,
                    others=_other_rows(table.columns) if spec.task == "causal-lm" else "",
                )


def _other_rows(columns: Collection[str]) -> str:
    """What else rows for causal-lm may have; of preferences, what could be learned of them."""
    if {"chosen", "rejected"} <= {*columns}:
        return (
            "; preferences are not learned, but what was chosen can be: name chosen there if it is a whole text, call "
            f"it {ANSWER} beside a {PROMPT}, or {MESSAGE_COLUMNS[0]} if it is a list of messages"
        )
    return f", or give {MESSAGE_COLUMNS[0]}, {INSTRUCTION} and {OUTPUT}, or {PROMPT} and {ANSWER}"


def _has_pairs(table: Table, source: DataSource, spec: InputSpec) -> bool:
    """Return whether rows for seq2seq are read as prompt and completion."""
    return spec.task == SEQ2SEQ and has_pairs(table.columns, source.text_column)


def dialogue_format(table: Table, source: DataSource, spec: InputSpec) -> str | None:
    """Format of the rows of a table that are chats or completions; None for texts and images."""
    if spec.task != "causal-lm":
        if source.format not in (None, TEXT):
            raise Told(
                "data: format {format} is for causal-lm; for {task} leave data.format out",
                format=source.format,
                task=spec.task,
            )
        return None
    try:
        found = None if source.packed else row_format(table.columns, source.text_column, source.format)
    except Refused as error:
        raise Told("{}: {error}", table.name, error=error) from None
    return None if found == TEXT else found


def examples(table: Table, source: DataSource, spec: InputSpec, beside: SideColumns | None = None) -> Iterator[Example]:
    """Yield every row of a table as an Example, in order; Refused names the location of the first bad row.

    Texts that are empty or null, as lines of files are, are left out, but for those of pairs, and so are dialogues
    without an answer beside others. beside: sees each row.
    """
    unanswered: Unanswered | None = None
    answered = False
    format, folders = dialogue_format(table, source, spec), source.folders_of(table)
    names = table.class_names(source.label_column)
    for number, values in table.rows():
        location = row_place(table, number)
        check_heading(table, location, values)
        if beside is not None:
            beside.see(location, values)
        if format is not None:
            try:
                dialogue = read_dialogue(location, values, format, source.loss_on == "all")
                check_answers(location, dialogue)
            except Unanswered as error:
                unanswered = unanswered or error
                if beside is not None:
                    beside.unanswered += 1
                continue
            answered = True
            yield Example(location=location, content=dialogue, label=None)
            continue
        check_halves(location, values, source, spec)
        if spec.task == SEQ2SEQ:
            pair = (PROMPT, ANSWER) if _has_pairs(table, source, spec) else (source.text_column, source.target_column)
            yield Example(location=location, content=read_pair(location, values, pair), label=None)
            continue
        column = source.text_column if spec.is_text else source.image_column
        value = values.get(column)
        if spec.is_text and is_empty_text(values, column):
            if beside is not None:
                beside.empty += 1
            continue
        if value is None:
            raise Told(
                "{location} has nothing in column {column!r}; fill it or leave the row out",
                location=location,
                column=column,
            )
        content = (
            given_text(location, column, value) if spec.is_text else as_image(inside(location, column), value, *folders)
        )
        label = None if spec.task == "causal-lm" else _sample_label(location, source.label_column, values, spec.task)
        if names and label is not None and not predicts_number(spec.task):
            label = _named(location, source.label_column, label, names)
        yield Example(location=location, content=content, label=label)
    if unanswered is not None and not answered:
        raise unanswered


def check_heading(table: Table, location: str, values: Mapping[str, Any]) -> None:
    """Refuse a row of each column's name, as where files were joined; one name alone may be a text outside of CSV."""
    cells = {each.strip("\ufeff ") for each in values.values() if isinstance(each, str)}
    blank = {name for name, cell in values.items() if isinstance(cell, str) and not cell and name.startswith(UNNAMED)}
    if cells and cells - {""} == values.keys() - blank and (len(cells) > 1 or isinstance(table, CsvTable)):
        raise Told(
            "{location} holds the names of columns ({}), as the heading of a file does; leave it out",
            ", ".join(values),
            location=location,
        )


def given_text(location: str, column: str, value: Any) -> str:
    """The text of a column; Refused where it is none: nobody knows in which spelling a list or a number is meant."""
    if not isinstance(value, str):
        raise Told(
            "{location}: column {column!r} holds {}, not text; give strings",
            type(value).__name__,
            location=location,
            column=column,
        )
    if not value.strip():
        raise Told(
            "{location}: column {column!r} is empty; fill it or leave the row out", location=location, column=column
        )
    return value


def _named(location: str, column: str, label: SampleLabel, names: tuple[str, ...]) -> SampleLabel:
    """The label, or each of several, by name in a table that names its classes; others may number them otherwise."""
    if isinstance(label, tuple):
        return tuple(_class_name(location, column, each, names) for each in label)
    return label if isinstance(label, float) else _class_name(location, column, label, names)


def _class_name(location: str, column: str, number: RawLabel, names: tuple[str, ...]) -> RawLabel:
    if not isinstance(number, int):
        return number
    if not 0 <= number < len(names):
        raise Told(
            "{location}: label {} in column {column!r} is not one of the {} named ones; mend it or leave the row out",
            number,
            len(names),
            location=location,
            column=column,
        )
    return names[number]


def _sample_label(location: str, column: str, values: Any, task: str) -> SampleLabel:
    if predicts_number(task):
        return _number(location, column, values.get(column))
    if not predicts_labels(task):
        return _label(location, column, values.get(column))
    found = values.get(column)
    if isinstance(found, str):
        found = _listed(location, column, found) if found.startswith("[") else found.split(SEPARATOR)
        spelled = [each.strip() if isinstance(each, str) else each for each in found]
        found = [each for each in spelled if each != ""]
    if isinstance(found, np.ndarray):
        found = found.tolist()
    if not isinstance(found, list | tuple):
        raise Told(
            "{location}: column {column!r} holds {}; give a list of labels, or a text such as a{separator}b",
            type(found).__name__,
            location=location,
            column=column,
            separator=SEPARATOR,
        )
    labels = tuple(_label(location, column, each) for each in found)
    twice = next((label for label in labels if labels.count(label) > 1), None)
    if twice is not None:
        raise Told(
            "{location}: column {column!r} names label {!r} twice; give the labels that it has, each once, not 0 or 1 "
            "for each that there is",
            twice,
            location=location,
            column=column,
        )
    return labels


def _listed(location: str, column: str, text: str) -> list[Any]:
    try:
        found = json.loads(text)
    except ValueError:
        raise Told(
            "{location}: column {column!r} holds a list that is no JSON; write it so, or as a text such as "
            "a{separator}b",
            location=location,
            column=column,
            separator=SEPARATOR,
        ) from None
    return list(found)


def _number(location: str, column: str, value: Any) -> float:
    unlike = value is None or isinstance(value, bool) or (isinstance(value, str) and "_" in value)
    try:
        found = math.nan if unlike else float(value)
    except (TypeError, ValueError):
        found = math.nan
    except OverflowError:
        found = math.inf
    if abs(found) > LARGEST:
        raise Told(
            "{location}: a number in column {column!r} is beyond those of 32 bits, {largest:.2g}; scale the numbers",
            location=location,
            column=column,
            largest=LARGEST,
        )
    if not math.isfinite(found):
        raise Told(
            "{location}: {!r} in column {column!r} is no number; fill it or leave the row out",
            value,
            location=location,
            column=column,
        )
    return found


def _label(location: str, column: str, value: Any) -> RawLabel:
    """A class as its column has it, without white space around it; truth values are spelled alike in all formats."""
    if isinstance(value, str):
        value = composed(value.strip())
        value = value.lower() if value in BOOLEANS else value
    if value is None or value == "" or value != value:  # float columns store missing values as NaN
        raise Told(
            "{location} has no label in column {column!r}; fill it or leave the row out",
            location=location,
            column=column,
        )
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        if value.is_integer():
            return int(value)
        raise Told(
            "{location}: label {!r} in column {column!r} is a fraction; give labels that are strings or whole "
            "numbers, or set model.task to learn numbers (sequence-regression, image-regression)",
            value,
            location=location,
            column=column,
        )
    if not isinstance(value, str | int):
        raise Told(
            "{location}: label {!r} in column {column!r}; labels are strings or whole numbers",
            value,
            location=location,
            column=column,
        )
    return value


@dataclass(frozen=True, kw_only=True)
class Survey:
    """Summary of one pass over the tables of a split."""

    content_keys: np.ndarray[Any, np.dtype[np.uint64]]
    """[rows] hash of each sample's content; equal samples have equal keys (texts: after normalising white space)."""
    labels: tuple[RawLabel, ...]
    """Distinct labels, in order of appearance."""
    label_indices: np.ndarray[Any, np.dtype[np.int64]]
    """[rows] index of each row's class in `labels`; empty where samples have no class."""
    image_shape: tuple[int, int]
    """Height and width of the first image; (0, 0) for text."""
    dim: int
    """Number of images that are all but black, or all but white, in every pixel."""
    beside: SideColumns
    """What is not read."""


def survey_tables(
    tables: tuple[Table, ...], source: DataSource, spec: InputSpec, progress: Progress, notes: SideColumns | None = None
) -> Survey:
    """Read and validate every row once; Refused on the first bad row, and if there is no row. notes: sees each."""
    beside = notes or SideColumns(source, spec)
    keys, labels, label_indices, shape, dim = array("Q"), dict[RawLabel, int](), array("q"), (0, 0), 0
    hot = True
    for example in _all_examples(tables, source, spec, beside):
        keys.append(_content_key(example))
        if isinstance(example.label, tuple):
            hot = hot and set(map(str, example.label)) == {"0", "1"}
            for each in example.label:
                labels.setdefault(each, len(labels))
        elif isinstance(example.label, str | int):
            label_indices.append(labels.setdefault(example.label, len(labels)))
        if isinstance(example.content, np.ndarray):
            shape = shape if any(shape) else (example.content.shape[0], example.content.shape[1])
            dim += bool(example.content.max() <= DIM or example.content.min() >= 1 - DIM)
        if len(keys) % REPORT_EVERY == 0:
            progress("reading data", len(keys), len(keys), "samples")
    if not keys:
        raise Told("{}: no samples in it; give at least one row", tables[0].name)
    if labels and not label_indices and hot:  # lists of more numbers have one twice
        raise Told(
            "{}: each row has the labels 0 and 1 in column {column!r}, as if they said which of two it has; give the "
            "labels that it has",
            tables[0].name,
            column=source.label_column,
        )
    return Survey(
        content_keys=np.frombuffer(keys, dtype=np.uint64),
        labels=tuple(labels),
        label_indices=np.frombuffer(label_indices, dtype=np.int64),
        image_shape=shape,
        dim=dim,
        beside=beside,
    )


def _all_examples(
    tables: tuple[Table, ...], source: DataSource, spec: InputSpec, beside: SideColumns
) -> Iterator[Example]:
    for table in tables:
        beside.begin(dialogue_format(table, source, spec), _has_pairs(table, source, spec))
        yield from examples(table, source, spec, beside)


def _content_key(example: Example) -> int:
    """64-bit hash of the sample's content."""
    content = example.content
    if isinstance(content, Chat | Completion):
        plain = content.key.encode("utf-8", "surrogatepass")
    elif isinstance(content, str):
        plain = " ".join(content.split()).encode("utf-8", "surrogatepass")
    else:
        plain = repr(content.shape).encode() + content.tobytes()
    return int.from_bytes(hashlib.blake2b(plain, digest_size=8).digest(), "big")
