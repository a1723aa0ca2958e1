"""The split that is tested on: of those that can be, the first whose rows have labels where the training rows do."""

import math
from collections.abc import Callable, Collection, Iterable, Iterator

from fleetune.data.splits import TEST_NAMES, TRAIN
from fleetune.data.tables import Table

UNKNOWN = ("-1", "-1.0")
"""What test splits such as those of GLUE have where they do not tell a label."""


def labelled_split(
    names: Collection[str], opened: Callable[[str], tuple[Table, ...]], column: str
) -> tuple[str, tuple[str, ...]]:
    """Return the name of a split to test on, empty for none, and a sentence if others before it have no labels.

    opened: opens the tables of a split.
    """
    without: list[str] = []
    for name in (name for name in TEST_NAMES if name in names):
        if TRAIN not in names or not _lacks_labels(opened(name), opened(TRAIN), column):
            return name, _notes(without)
        without.append(name)
    return "", _notes(without)


def _notes(without: list[str]) -> tuple[str, ...]:
    return tuple(f"the rows of {name} have no labels (none, or -1), so it is not tested on" for name in without)


def _lacks_labels(tested: Iterable[Table], trained: Collection[Table], column: str) -> bool:
    """Whether no row that would be tested on has a label, and training rows have; -1 is one if these have it."""
    if not all(column in table.columns for table in trained):
        return False
    seen = set[str]()
    for label in _labels(tested, column):
        if label and label not in UNKNOWN:
            return False
        seen.add(label)
    return bool(seen) and (seen == {""} or not any(label in UNKNOWN for label in _labels(trained, column)))


def _labels(tables: Iterable[Table], column: str) -> Iterator[str]:
    """Labels as texts; empty for none."""
    for table in tables:
        for _, values in table.rows():
            value = values.get(column)
            yield "" if value is None or (isinstance(value, float) and math.isnan(value)) else str(value).strip()
