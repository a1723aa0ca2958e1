"""Comparisons in the store: `comparisons/ID/comparison.json`, and the same as a page, `comparison.html`."""

from pathlib import Path

from fleetune.contracts import json_io
from fleetune.contracts.record import NAME
from fleetune.errors import Refused
from fleetune.store import Store
from flows.comparison.record import Comparison

FOLDER, DOCUMENT, PAGE = "comparisons", "comparison.json", "comparison.html"


def keep(store: Store, comparison: Comparison) -> None:
    """Write a comparison, or write it again as it has come further; each file is replaced atomically."""
    from flows.comparison.pages import html_page  # brings the clock's compiler, which no server needs

    place = f"{FOLDER}/{comparison.id}"
    store.storage.write(f"{place}/{PAGE}", html_page(comparison).encode())
    store.storage.write(f"{place}/{DOCUMENT}", json_io.text(comparison).encode())


def load(store: Store, comparison: str) -> Comparison:
    """The comparison of that id. Refused: there is none; the error names the newest."""
    return json_io.parse(Comparison, read(store, comparison, DOCUMENT), f"{FOLDER}/{comparison}/{DOCUMENT}")


def read(store: Store, comparison: str, file: str) -> bytes:
    """The content of a file of a comparison. Refused: there is none; the error names the newest comparisons."""
    known = file in (DOCUMENT, PAGE) and NAME.fullmatch(comparison)
    content = store.storage.read(f"{FOLDER}/{comparison}/{file}") if known else None
    if content is None:
        newest = ", ".join(store.storage.names(FOLDER)[-4:]) or "none yet"
        raise Refused(f"comparison {comparison!r}: there is no {file} of it; the newest are {newest}")
    return content


def every(store: Store) -> tuple[Comparison, ...]:
    """All readable comparisons, newest first."""
    found = []
    for name in store.storage.names(FOLDER):
        try:
            found.append(load(store, name))
        except Refused:
            continue
    return tuple(sorted(found, key=lambda one: (one.started, one.id), reverse=True))


def page_path(store: Store, comparison: str) -> str:
    """Path of a comparison's page in a store of this machine; its address in another."""
    place = f"{FOLDER}/{comparison}/{PAGE}"
    return f"{store.root}/{place}" if "://" in store.root else str(Path(store.root).resolve() / place)
