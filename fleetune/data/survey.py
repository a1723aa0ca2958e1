"""The first pass over a source: every row is checked, keyed and its label noted, before anything is written."""

import hashlib
from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from fleetune.contracts.task import Progress
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
    labels: tuple[RawLabel, ...]
    """Distinct labels as the source spells them, in order of appearance."""
    label_of: np.ndarray[Any, np.dtype[np.int64]]
    """Per row, which of `labels`; empty for causal-lm."""
    image_shape: tuple[int, int]
    """Height and width of the first image; (0, 0) for text."""


def survey(tables: tuple[Table, ...], source: Source, needs: InputNeeds, progress: Progress) -> Survey:
    """Read every row once; the first bad one is refused, and so is a split without rows."""
    keys, labels, label_of, shape = array("Q"), dict[RawLabel, int](), array("q"), (0, 0)
    for example in _all(tables, source, needs):
        keys.append(_key(example))
        if example.label is not None:
            label_of.append(labels.setdefault(example.label, len(labels)))
        if not isinstance(example.content, str) and shape == (0, 0):
            shape = (example.content.shape[0], example.content.shape[1])
        if len(keys) % REPORT_EVERY == 0:
            progress("reading data", len(keys), len(keys), "samples")
    if not keys:
        raise Refused(f"{tables[0].owner}: no samples in it; give at least one row")
    return Survey(
        keys=np.frombuffer(keys, dtype=np.uint64),
        labels=tuple(labels),
        label_of=np.frombuffer(label_of, dtype=np.int64),
        image_shape=shape,
    )


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
