"""Unfinished attempts that a new one can go on from, though it was planned anew: their work folders.

An attempt writes what its key is made of beside its work (`ingredients.json`). One that differs in nothing but inputs
that the stage can exchange (StageEntry.resumes) has done part of the same work.
"""

import json
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

from fleetune.errors import Refused
from fleetune.store import Ingredients, Store
from stages.catalog import StageEntry

INGREDIENTS = "ingredients.json"


def leave_ingredients(work: Path, ingredients: Mapping[str, str]) -> None:
    """Write what an attempt's key is made of, for those that come after it."""
    part = work / f"{INGREDIENTS}.part"
    part.write_text(json.dumps(dict(ingredients), indent=1, sort_keys=True) + "\n", encoding="utf-8")
    part.replace(work / INGREDIENTS)


@contextmanager
def predecessors(store: Store, row: StageEntry, key: str, ingredients: Mapping[str, str]) -> Iterator[tuple[str, ...]]:
    """Keys of unfinished attempts to go on from; no other process works in their folders meanwhile."""
    with ExitStack() as held:
        found = []
        for other in store.works() if row.resumes else ():
            if other != key and _goes_on(store, row, left_ingredients(store, other), ingredients):
                lock = store.lock(other, lambda seconds: True)
                if lock.take():
                    held.callback(lock.release)
                    found.append(other)
        yield tuple(found)


def left_ingredients(store: Store, key: str) -> Ingredients:
    """What the key of an unfinished attempt is made of; nothing where it did not say, or there is none."""
    try:
        found = json.loads((store.local / "work" / key / INGREDIENTS).read_bytes())
    except (OSError, ValueError):
        return {}
    return {str(name): str(text) for name, text in found.items()} if isinstance(found, dict) else {}


def _goes_on(store: Store, row: StageEntry, old: Mapping[str, str], new: Mapping[str, str]) -> bool:
    free = {f"input.{kind}" for kind in row.resumes}
    if not old or {**old, **dict.fromkeys(free, "")} != {**new, **dict.fromkeys(free, "")}:
        return False
    return all(
        _files(store, kind, old[f"input.{kind}"], names) == _files(store, kind, new[f"input.{kind}"], names)
        for kind, names in row.resumes.items()
        if names
    )


def _files(store: Store, kind: str, digest: str, names: tuple[str, ...]) -> dict[str, str] | None:
    """Hashes of some files of an artifact; None where it is not in the store any more."""
    try:
        files = store.manifest(kind, digest).files
    except Refused:
        return None
    return {file.path: file.sha256 for file in files if file.path in names}
