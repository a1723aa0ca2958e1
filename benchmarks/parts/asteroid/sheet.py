"""A table for people, the sentences beneath it, and its figures."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from rich import box
from rich.console import Console
from rich.table import Table

from benchmarks.report import WIDTH, Figure

NEAR = 1.25
"""A ratio within this factor of the paper's counts as near it."""


@dataclass
class Sheet:
    """One of the paper's tables or figures, ours beside it."""

    title: str
    columns: Sequence[str]
    rows: list[Sequence[str]] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)
    figures: list[Figure] = field(default_factory=list)

    def print(self, console: Console) -> None:
        """Table, then remarks."""
        table = Table(title=self.title, box=box.SIMPLE_HEAD, title_justify="left", title_style="bold")
        for place, column in enumerate(self.columns):
            table.add_column(column, justify="left" if place in (0, len(self.columns) - 1) else "right")
        for row in self.rows:
            table.add_row(*row)
        console.print(table)
        for remark in self.remarks:
            console.print(f"  {remark}")
        console.print()


def beside(ours: float, paper: float | None = None) -> str:
    """`4.25 (4.4)`: the paper's in brackets."""
    return f"{ours:.2f}" + ("" if paper is None else f" ({paper:g})")


def near(ours: float, paper: float) -> bool:
    """Whether two ratios differ by no more than NEAR."""
    return paper / NEAR <= ours <= paper * NEAR


def share(name: str, holds: Iterable[bool], about: str) -> Figure:
    """How many of the cells agree with the paper; the target is all."""
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


def console() -> Console:
    """Where sheets are printed; as wide as reports where no terminal says how wide it is."""
    found = Console(highlight=False, markup=False)
    return found if found.is_terminal else Console(highlight=False, markup=False, width=WIDTH)
