"""Pages in Markdown, as artifacts show them: tables, pictures, and links to the pages of the store."""

import os
from collections.abc import Iterable, Sequence
from pathlib import Path

from fleetune.contracts.record import record
from fleetune.drawing.svg import image_url
from fleetune.store import Store
from flows.prefect_server import API_URL
from flows.service_files import ServiceFiles

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


@record
class StoreLinks:
    """Links to the pages of a store; without a service they are paths, since Prefect's UI drops links to files."""

    root: str
    """Root of the store."""
    pages: str = ""
    """Address of its pages; empty without a service."""

    def run(self, run: str) -> str:
        """Link to the page of a run; its name alone without a service."""
        return link(run, f"{self.pages}/runs/{run}" if self.pages else "")

    def artifact(self, kind: str, digest: str) -> str:
        """Link to the files of an artifact; the kind alone without a service."""
        return link(kind, f"{self.pages}/artifacts/{kind}/{digest}" if self.pages else "")

    def file(self, text: str, kind: str, digest: str, path: str) -> str:
        """Link to a file of an artifact; its path without a service."""
        place = f"artifacts/{kind}/{digest}/{path}"
        return link(text, f"{self.pages}/{place}") if self.pages else f"{text}: {code(f'{self.root}/{place}')}"

    def comparison(self, comparison: str) -> str:
        """Link to the page of a comparison; its path without a service."""
        place = f"comparisons/{comparison}/comparison.html"
        return link("This comparison", f"{self.pages}/{place}") if self.pages else code(f"{self.root}/{place}")


def links_of(store: Store) -> StoreLinks:
    """The links of a store, by its service if one runs.

    They are kept on that service's own pages, and so they name no port: the next `up` may have another one.
    """
    files = ServiceFiles(store.local)
    service = files.running()
    if service is None:
        return StoreLinks(root=store.root if "://" in store.root else str(Path(store.root).resolve()))
    elsewhere = os.environ.get(API_URL, service.api) != service.api
    return StoreLinks(
        root=service.root, pages=f"{service.address if elsewhere else ''}{files.pages_path(service.authenticated)}"
    )
