"""From a table's rows to checked samples: the text or image, and the label as the source spells it."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from fleetune.contracts.run_config import DataRequest
from fleetune.data.images import Image, as_image
from fleetune.data.needs import InputNeeds
from fleetune.data.table import Source, Table
from fleetune.errors import Refused

RawLabel = str | int


@dataclass(frozen=True, kw_only=True, slots=True)
class Example:
    """One sample, before tokens and pixels; label is None for causal-lm."""

    where: str
    content: str | Image
    label: RawLabel | None


def check_fits(request: DataRequest, source: Source, needs: InputNeeds) -> None:
    """Refuse a source that cannot serve the task at all: a column is missing, or it is packed text."""
    if source.packed and needs.task != "causal-lm":
        raise Refused(f"data: {request.source} is text without labels, for causal-lm; for {needs.task} use docstrings")
    column = source.text_column if needs.is_text else source.image_column
    wanted = [column] if needs.task == "causal-lm" else [column, source.label_column]
    for table in (*source.train, *source.test):
        for name in wanted:
            if table.columns and name not in table.columns:
                kind = "label" if name == source.label_column else ("text" if needs.is_text else "image")
                raise Refused(
                    f"{table.owner}: no column {name!r} for {needs.task}; it has {', '.join(table.columns)} "
                    f"(choose with data.{kind}_column)"
                )


def examples(table: Table, source: Source, needs: InputNeeds) -> Iterator[Example]:
    """Every row of a table as an Example, in order; the first bad one is refused by its place in the file."""
    for number, values in table.rows():
        where = f"{table.owner}: {table.counted} {number}"
        column = source.text_column if needs.is_text else source.image_column
        value = values.get(column)
        if value is None:
            raise Refused(f"{where} has nothing in column {column!r}; fill it or leave the row out")
        content = _text(where, column, value) if needs.is_text else as_image(f"{where}, {column}", value, source.folder)
        label = None if needs.task == "causal-lm" else _label(where, source.label_column, values)
        yield Example(where=where, content=content, label=label)


def _text(where: str, column: str, value: Any) -> str:
    if not isinstance(value, str):
        raise Refused(f"{where}: column {column!r} holds {type(value).__name__}, not text; give strings")
    if not value.strip():
        raise Refused(f"{where}: column {column!r} is empty; fill it or leave the row out")
    return value


def _label(where: str, column: str, values: Any) -> RawLabel:
    value = values.get(column)
    if value is None or value == "" or value != value:  # NaN is how tables of floats say nothing
        raise Refused(f"{where} has no label in column {column!r}; fill it or leave the row out")
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        if value.is_integer():
            return int(value)
        raise Refused(
            f"{where}: label {value!r} in column {column!r} is a fraction, and regression is not there yet; give "
            "labels that are strings or whole numbers"
        )
    if not isinstance(value, str | int):
        raise Refused(f"{where}: label {value!r} in column {column!r}; labels are strings or whole numbers")
    return value
