"""Output of every benchmark: tables for people, then one line of JSON for programs, and the figures in both."""

import json
import math
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from fleetune.contracts.record import one_of, record

WIDTH = 140
"""Width of tables in characters where stdout is no terminal."""


SIGNS = {"lower": "≤", "higher": "≥"}


@record
class Figure:
    """One measured number; `value` is None where it could not be measured here, and `why` says the reason."""

    name: str
    value: float | None
    unit: str
    target: float | None = None
    """The value that the project set out to reach; None for figures that are only reported."""
    better: str
    """`lower` or `higher`."""
    spread: tuple[float, float] | None = None
    """Smallest and largest of the repeats; given for every comparison."""
    why: str = ""
    about: str = ""
    """Explanation for the table."""
    cell: tuple[str, str, str] | None = None
    """(sheet, row, column) of a figure that is printed in a grid instead of the list of all figures."""

    def __post_init__(self) -> None:
        one_of(f"figure {self.name}", "better", self.better, ("lower", "higher"))
        if self.value is not None and not math.isfinite(self.value):
            raise ValueError(f"figure {self.name}: {self.value} is not finite; give None and why")
        if self.value is None and not self.why:
            raise ValueError(f"figure {self.name}: it has no value, so it must say why")

    @property
    def ok(self) -> bool:
        """True if the value reaches the target, or, without a target, if there is a value."""
        if self.value is None or self.target is None:
            return self.value is not None
        return self.value <= self.target if self.better == "lower" else self.value >= self.target

    def to_json(self) -> dict[str, Any]:
        """The JSON object of this figure."""
        document: dict[str, Any] = {
            "name": self.name,
            "value": self.value,
            "unit": self.unit,
            "target": self.target,
            "better": self.better,
            "ok": self.ok,
        }
        if self.spread is not None:
            document["spread"] = list(self.spread)
        if self.why:
            document["why"] = self.why
        return document


@dataclass
class Report:
    """The figures of one run of a benchmark. Create it before the work starts: it reads the machine's load."""

    bench: str
    quick: bool
    figures: list[Figure] = field(default_factory=list)
    cores: int = field(default_factory=lambda: len(os.sched_getaffinity(0)))
    load_before: float = field(default_factory=lambda: os.getloadavg()[0])

    def add(self, figures: Iterable[Figure]) -> None:
        """Append figures; they are printed in this order."""
        self.figures.extend(figures)

    def line(self) -> str:
        """The line of JSON that ends the output."""
        machine = {"cores": self.cores, "load_before": round(self.load_before, 2)}
        plain = {
            "bench": self.bench,
            "quick": self.quick,
            "machine": machine,
            "figures": [figure.to_json() for figure in self.figures],
        }
        return json.dumps(plain, allow_nan=False)

    def print(self) -> None:
        """Print the tables and then the line of JSON on stdout."""
        console = Console(file=sys.stdout)
        if not console.is_terminal:
            console = Console(file=sys.stdout, width=WIDTH)
        for sheet in self._sheets():
            console.print(sheet)
        console.print(self._table())
        print(self.line(), flush=True)

    def _sheets(self) -> Iterator[Table]:
        """Yields one grid per sheet title: values with their spread in brackets."""
        cells = {figure.cell: figure for figure in self.figures if figure.cell is not None}
        for title in dict.fromkeys(title for title, _, _ in cells):
            rows = dict.fromkeys(row for sheet, row, _ in cells if sheet == title)
            columns = list(dict.fromkeys(column for sheet, _, column in cells if sheet == title))
            table = Table(title=title, box=box.SIMPLE_HEAD, title_justify="left")
            for column in ("", *columns):
                table.add_column(column, justify="right" if column else "left")
            for row in rows:
                table.add_row(row, *(_cell_text(cells.get((title, row, column))) for column in columns))
            yield table

    def _table(self) -> Table:
        title = (
            f"{self.bench}{' (quick)' if self.quick else ''}: {self.cores} cores, load {self.load_before:.2f} before"
        )
        table = Table(title=title, box=box.SIMPLE_HEAD, title_justify="left")
        for column in ("figure", "value", "target", "spread", ""):
            table.add_column(column, justify="left" if column in ("figure", "") else "right", no_wrap=True)
        table.add_column("what it is")
        for figure in (figure for figure in self.figures if figure.cell is None):
            table.add_row(
                figure.name,
                "none" if figure.value is None else f"{_four_digits(figure.value)} {figure.unit}",
                "" if figure.target is None else f"{SIGNS[figure.better]} {_four_digits(figure.target)}",
                "" if figure.spread is None else " - ".join(map(_four_digits, figure.spread)),
                "" if figure.target is None else ("ok" if figure.ok else "missed"),
                figure.why or figure.about,
            )
        return table


def median_and_spread(values: Sequence[float]) -> dict[str, Any]:
    """Median, smallest and largest of `values` as the keyword arguments `value` and `spread` of a Figure."""
    return {"value": statistics.median(values), "spread": (min(values), max(values))}


def _cell_text(figure: Figure | None) -> str:
    if figure is None or figure.value is None:
        return ""
    missed = "" if figure.ok else " missed"
    within = "" if figure.spread is None or figure.spread[0] == figure.spread[1] else _within(figure.spread)
    return f"{_three_digits(figure.value)}{within}{missed}"


def _within(spread: tuple[float, float]) -> str:
    return f" ({_three_digits(spread[0])}-{_three_digits(spread[1])})"


def _three_digits(value: float) -> str:
    return f"{value:.3g}" if abs(value) < 1e3 else f"{value:,.0f}"


def _four_digits(value: float) -> str:
    return f"{value:.4g}" if abs(value) < 1e4 else f"{value:,.0f}"


NEAR = 1.25
"""A ratio within this factor of the paper's agrees with it."""


@dataclass
class Sheet:
    """A table for people with remarks below it, and the figures that are read from it."""

    title: str
    columns: Sequence[str]
    rows: list[Sequence[str]] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)
    figures: list[Figure] = field(default_factory=list)

    def print(self, console: Console) -> None:
        """Print the table, then the remarks."""
        table = Table(title=self.title, box=box.SIMPLE_HEAD, title_justify="left", title_style="bold")
        for place, column in enumerate(self.columns):
            table.add_column(column, justify="left" if place in (0, len(self.columns) - 1) else "right")
        for row in self.rows:
            table.add_row(*row)
        console.print(table)
        for remark in self.remarks:
            console.print(f"  {remark}")
        console.print()


def with_paper(ours: float, paper: float | None = None) -> str:
    """Our ratio with the paper's in brackets: `4.25 (4.4)`."""
    return f"{ours:.2f}" + ("" if paper is None else f" ({paper:g})")


def near(ours: float, paper: float) -> bool:
    """True if the two ratios differ by at most the factor NEAR."""
    return paper / NEAR <= ours <= paper * NEAR


def agreement(name: str, holds: Iterable[bool], about: str) -> Figure:
    """A figure with the share of `holds` that is true; the target is all, and without any cell it has no value."""
    listed = list(holds)
    if not listed:
        return Figure(name=name, value=None, unit="of cells", better="higher", why="no cell to compare")
    agreeing = sum(listed)
    return Figure(
        name=name,
        value=agreeing / len(listed),
        unit="of cells",
        target=1.0,
        better="higher",
        about=f"{about} ({agreeing} of {len(listed)})",
    )


def wide_console() -> Console:
    """A console without markup for sheets; WIDTH characters wide where stdout is no terminal."""
    console = Console(highlight=False, markup=False)
    return console if console.is_terminal else Console(highlight=False, markup=False, width=WIDTH)


def progress_printer() -> Callable[[str], None]:
    """A function that prints a sentence on stderr behind the seconds since this call."""
    started_s = time.monotonic()

    def report_progress(sentence: str) -> None:
        print(f"{time.monotonic() - started_s:5.0f} s  {sentence}", file=sys.stderr, flush=True)

    return report_progress
