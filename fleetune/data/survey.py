"""The first pass over a source: every row is checked, counted and keyed, before anything is written."""

import hashlib
from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from fleetune.contracts.progress import Progress
from fleetune.data.examples import Example, RawLabel, examples
from fleetune.data.needs import InputNeeds
from fleetune.data.table import Source, Table
from fleetune.errors import Refused

REPORT_EVERY = 2000


@dataclass(frozen=True, kw_only=True)
class Survey:
    """What one pass over a split's tables found."""

    keys: np.ndarray[Any, np.dtype[np.uint64]]
    """Per row; equal for equal samples (texts: after white space is normalised)."""
    labels: frozenset[RawLabel]
    image_side: int
    """The longer side of the first image; 0 for text."""


def survey(tables: tuple[Table, ...], source: Source, needs: InputNeeds, progress: Progress) -> Survey:
    """Read every row once; the first bad one is refused, and so is a split without rows."""
    keys, labels, side = array("Q"), set[RawLabel](), 0
    for example in _all(tables, source, needs):
        keys.append(_key(example))
        if example.label is not None:
            labels.add(example.label)
        if not isinstance(example.content, str) and not side:
            side = max(example.content.shape[:2])
        if len(keys) % REPORT_EVERY == 0:
            progress("reading data", len(keys), len(keys), "samples")
    if not keys:
        raise Refused(f"{tables[0].owner}: no samples in it; give at least one row")
    return Survey(keys=np.frombuffer(keys, dtype=np.uint64), labels=frozenset(labels), image_side=side)


def class_names(found: frozenset[RawLabel], tables: tuple[Table, ...], column: str) -> dict[RawLabel, str]:
    """label as the source spells it -> name, in the order of class numbers.

    Names that the source itself gives to numbers are kept in its order; else labels are sorted, as numbers where all
    of them are whole numbers.
    """
    owner = tables[0].owner
    if len(found) < 2:
        only = next(iter(found), None)
        raise Refused(f"{owner}: every row has the label {only!r} in column {column!r}; a classifier needs two or more")
    named = tables[0].names(column)
    if named:
        outside = sorted(label for label in found if not isinstance(label, int) or not 0 <= label < len(named))
        if outside:
            raise Refused(
                f"{owner}: label {outside[0]!r} in column {column!r} is not one of the {len(named)} named ones"
            )
        return dict(enumerate(named))
    if len({type(label) for label in found}) > 1:
        raise Refused(f"{owner}: column {column!r} mixes strings and whole numbers; spell all labels alike")
    numeric = all(isinstance(label, int) or (label.isascii() and label.isdecimal()) for label in found)
    ordered = sorted(found, key=lambda label: (int(label) if numeric else 0, str(label)))
    return {label: str(label) for label in ordered}


def _all(tables: tuple[Table, ...], source: Source, needs: InputNeeds) -> Iterator[Example]:
    for table in tables:
        yield from examples(table, source, needs)


def _key(example: Example) -> int:
    """64 bits that stand for the sample's content."""
    content = example.content
    if isinstance(content, str):
        plain = " ".join(content.split()).encode("utf-8", "surrogatepass")
    else:
        plain = repr(content.shape).encode() + content.tobytes()
    return int.from_bytes(hashlib.blake2b(plain, digest_size=8).digest(), "big")
