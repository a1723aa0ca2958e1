"""Runs that must stay because a model of theirs was promoted: the records in `promotions/` of the store.

This is the one place where promotions and the removal of old runs meet. Records are searched for the ids and digests
that they mention, so that a damaged record, or one of another version, still keeps what it names.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import field
from pathlib import Path

from fleetune.contracts.record import record
from fleetune.errors import Refused
from fleetune.store.store import Store

FOLDERS = ("promotions", "promoted")
DIGEST = re.compile(rb"(?<![0-9a-f])[0-9a-f]{32}(?![0-9a-f])")
WORD = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")


@record
class Pins:
    """What promotions keep."""

    runs: dict[str, str] = field(default_factory=dict)
    """Id of a run -> path of the record that names it, relative to the store."""
    digests: frozenset[str] = frozenset()
    """Digests of artifacts that the records name, such as checkpoints whose run record is gone."""


def pinned_runs(store: Store) -> Pins:
    """What the store's promotions keep. Refused: a record that cannot be read, because what it keeps is unknown."""
    known = set(store.storage.names("runs"))
    runs: dict[str, str] = {}
    digests: set[str] = set()
    for path in _records(store.local):
        try:
            content = path.read_bytes()
        except OSError as error:
            raise Refused(f"{path}: cannot be read ({error.strerror}), so what it keeps is unknown") from None
        if _is_rejection(content):
            continue
        digests |= named_digests(content)
        named = known & set(WORD.findall(content.decode("utf-8", "replace")))
        runs.update(dict.fromkeys(sorted(named), path.relative_to(store.local).as_posix()))
    return Pins(runs=runs, digests=frozenset(digests))


def named_digests(content: bytes) -> set[str]:
    """Every digest of an artifact or stage key in the bytes of a record, wherever it stands: in a path too."""
    return {found.decode() for found in DIGEST.findall(content)}


def _records(root: Path) -> Iterator[Path]:
    for folder in FOLDERS:
        yield from sorted(path for path in (root / folder).rglob("*.json") if not path.name.startswith("."))


def _is_rejection(content: bytes) -> bool:
    """True for the record of a decision not to promote."""
    try:
        found = json.loads(content)
    except (ValueError, RecursionError):
        return False
    return isinstance(found, dict) and found.get("promoted") is False
