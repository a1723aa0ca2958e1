"""What every benchmark prints: a table for people, then one line of JSON for programs."""

import json
import math
import os
import statistics
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from fleetune.contracts.record import one_of, record

WIDTH = 140
"""Of the table where no terminal says how wide it is."""


@record
class Figure:
    """One measured number; `value` None says that it could not be measured here, and `why`."""

    name: str
    value: float | None
    unit: str
    target: float | None = None
    """What was asked for."""
    better: str
    """`lower` or `higher`."""
    spread: tuple[float, float] | None = None
    """Smallest and largest of the repeats, for a comparison."""
    why: str = ""
    about: str = ""
    """In words, for the table."""
    cell: tuple[str, str, str] | None = None
    """Sheet, row and column, where it is one of many of a kind: then it stands there and not in the long table."""

    def __post_init__(self) -> None:
        one_of(f"figure {self.name}", "better", self.better, ("lower", "higher"))
        if self.value is not None and not math.isfinite(self.value):
            raise ValueError(f"figure {self.name}: {self.value} is not finite; give None and why")
        if self.value is None and not self.why:
            raise ValueError(f"figure {self.name}: it has no value, so it must say why")

    @property
    def ok(self) -> bool:
        """Whether the value reaches the target; without a target, whether there is a value."""
        if self.value is None or self.target is None:
            return self.value is not None
        return self.value <= self.target if self.better == "lower" else self.value >= self.target

    def plain(self) -> dict[str, Any]:
        """As it stands in the JSON line."""
        found: dict[str, Any] = {
            "name": self.name,
            "value": self.value,
            "unit": self.unit,
            "target": self.target,
            "better": self.better,
            "ok": self.ok,
        }
        if self.spread is not None:
            found["spread"] = list(self.spread)
        if self.why:
            found["why"] = self.why
        return found


@dataclass
class Report:
    """The figures of one run of a benchmark. Make it before the work starts: it reads the machine's load."""

    bench: str
    quick: bool
    figures: list[Figure] = field(default_factory=list)
    cores: int = field(default_factory=lambda: len(os.sched_getaffinity(0)))
    load_before: float = field(default_factory=lambda: os.getloadavg()[0])

    def add(self, figures: Iterable[Figure]) -> None:
        """Take up figures in the order in which they will be printed."""
        self.figures.extend(figures)

    def line(self) -> str:
        """The line of JSON."""
        machine = {"cores": self.cores, "load_before": round(self.load_before, 2)}
        plain = {
            "bench": self.bench,
            "quick": self.quick,
            "machine": machine,
            "figures": [figure.plain() for figure in self.figures],
        }
        return json.dumps(plain, allow_nan=False)

    def print(self) -> None:
        """Table and line on stdout; the line is the last one."""
        console = Console(file=sys.stdout)
        if not console.is_terminal:
            console = Console(file=sys.stdout, width=WIDTH)
        for sheet in self._sheets():
            console.print(sheet)
        console.print(self._table())
        print(self.line(), flush=True)

    def _sheets(self) -> Iterator[Table]:
        """Figures of a kind beside each other: value, and spread in brackets."""
        cells = {figure.cell: figure for figure in self.figures if figure.cell is not None}
        for title in dict.fromkeys(title for title, _, _ in cells):
            rows = dict.fromkeys(row for sheet, row, _ in cells if sheet == title)
            columns = list(dict.fromkeys(column for sheet, _, column in cells if sheet == title))
            table = Table(title=title, box=box.SIMPLE_HEAD, title_justify="left")
            for column in ("", *columns):
                table.add_column(column, justify="right" if column else "left")
            for row in rows:
                table.add_row(row, *(_in_cell(cells.get((title, row, column))) for column in columns))
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
                "none" if figure.value is None else f"{_short(figure.value)} {figure.unit}",
                "" if figure.target is None else f"{'≤' if figure.better == 'lower' else '≥'} {_short(figure.target)}",
                "" if figure.spread is None else " - ".join(map(_short, figure.spread)),
                "" if figure.target is None else ("ok" if figure.ok else "missed"),
                figure.why or figure.about,
            )
        return table


def middle(values: Sequence[float]) -> dict[str, Any]:
    """Median and spread of repeats, as arguments of a Figure."""
    return {"value": statistics.median(values), "spread": (min(values), max(values))}


def _in_cell(figure: Figure | None) -> str:
    if figure is None or figure.value is None:
        return ""
    missed = "" if figure.ok else " missed"
    within = "" if figure.spread is None or figure.spread[0] == figure.spread[1] else _within(figure.spread)
    return f"{_brief(figure.value)}{within}{missed}"


def _within(spread: tuple[float, float]) -> str:
    return f" ({_brief(spread[0])}-{_brief(spread[1])})"


def _brief(value: float) -> str:
    return f"{value:.3g}" if abs(value) < 1e3 else f"{value:,.0f}"


def _short(value: float) -> str:
    return f"{value:.4g}" if abs(value) < 1e4 else f"{value:,.0f}"
