"""Where samples come from: tables that are read row by row, as often as needed, and sources that gather them."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol


class Table(Protocol):
    """Rows in a fixed order. A row is numbered as its file numbers it, so that a message can point at it."""

    @property
    def owner(self) -> str:
        """What messages call it: a file, or a built-in set."""

    @property
    def counted(self) -> str:
        """What the number of a row counts: `line`, `row` or `sample`."""

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the columns; of the first row where rows may differ."""

    def names(self, column: str) -> tuple[str, ...]:
        """Names that the table itself gives to the integers of a column; empty where it has none."""

    def rows(self) -> Iterator[tuple[int, Mapping[str, Any]]]:
        """(number, column -> value) of every row."""


@dataclass(frozen=True, kw_only=True)
class Listed:
    """A table that is already in memory."""

    owner: str
    values: tuple[Mapping[str, Any], ...]
    counted: str = "sample"

    @property
    def columns(self) -> tuple[str, ...]:
        """Columns of the first row."""
        return tuple(self.values[0]) if self.values else ()

    def names(self, column: str) -> tuple[str, ...]:
        """No names of its own."""
        return ()

    def rows(self) -> Iterator[tuple[int, Mapping[str, Any]]]:
        """Numbered from 1."""
        yield from enumerate(self.values, start=1)


@dataclass(frozen=True, kw_only=True)
class Source:
    """Tables by split. With no `test`, part of `train` is held out."""

    train: tuple[Table, ...]
    test: tuple[Table, ...] = ()
    text_column: str = "text"
    image_column: str = "image"
    label_column: str = "label"
    folder: Path | None = None
    """Where paths in the image column start."""
    packed: bool = False
    """For causal-lm: rows are documents to be laid end to end and cut into blocks, not samples."""
