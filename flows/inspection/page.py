"""Pages in Markdown, as artifacts show them: tables, links and pictures."""

from collections.abc import Iterable, Sequence

from fleetune.contracts.record import record
from fleetune.drawing.svg import image_url

MOST_PAGE_BYTES, MOST_PICTURE_BYTES = 180_000, 50_000
"""Bounds of a page, and of one picture in it as a data URL."""
LONGEST_CELL = 300


@record
class Page:
    """The content of an artifact."""

    markdown: str
    description: str
    """One line, which lists of artifacts show."""


def table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table; empty without rows. Cells are Markdown: text that others wrote goes through `plain` first."""
    lines = [f"| {' | '.join(row)} |" for row in rows]
    if not lines:
        return ""
    return "\n".join([f"| {' | '.join(headings)} |", "|" + "---|" * len(headings), *lines])


def plain(text: str) -> str:
    """Return text that Markdown shows as it is, on one line."""
    short = " ".join(text.split())
    short = short if len(short) <= LONGEST_CELL else short[: LONGEST_CELL - 1] + "…"
    return "".join(f"\\{sign}" if sign in "\\`*_[]<>|#~$" else sign for sign in short)


def unbroken(text: str) -> str:
    """Return text of a narrow column, such as `2.67 s`, that stays on one line."""
    return text.replace(" ", "\u00a0")


def code(text: str) -> str:
    """Return text in a fixed-width font, on one line."""
    return f"`{' '.join(text.split()).replace('`', chr(39)).replace('|', chr(0xA6))}`"


def link(text: str, address: str) -> str:
    """Return a link; text alone without an address."""
    return f"[{plain(text)}]({address})" if address else plain(text)


def picture(name: str, charts: Iterable[str]) -> str:
    """Return the first of several charts that is small enough, as a picture; a sentence when none is."""
    for chart in filter(None, charts):
        address = image_url(chart)
        if len(address) <= MOST_PICTURE_BYTES:
            return f"![{plain(name)}]({address})"
    return f"({plain(name)}: too many bars for this page; the report draws them)"


def page(parts: Iterable[str], description: str) -> Page:
    """Return a page of the parts that are not empty; parts beyond the bound of a page are left out, and it says so."""
    kept: list[str] = []
    left = MOST_PAGE_BYTES
    for part in filter(None, parts):
        left -= len(part.encode()) + 2
        if left < 0:
            kept.append("(The rest is too long for this page; the report has it.)")
            break
        kept.append(part)
    return Page(markdown="\n\n".join(kept) + "\n", description=description)
