"""The split that is tested on: of those that can be, the first whose rows have labels where the training rows do."""

import functools
import math
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import replace

from fleetune.contracts.tasks import predicts_tokens
from fleetune.data.splits import TEST_NAMES, TRAIN
from fleetune.data.tables import ArrowTable, Table

UNKNOWN = ("-1", "-1.0")
"""What test splits such as those of GLUE have where they do not tell a label."""


def labelled_split(
    names: Collection[str], opened: Callable[[str], tuple[Table, ...]], column: str, task: str
) -> tuple[str, tuple[str, ...]]:
    """Return the name of a split to test on, empty for none, and a sentence if others before it have no labels.

    opened: opens the tables of a split, of which no other column is read. Models of tokens read no labels.
    """

    @functools.cache
    def unknown_trained() -> bool:
        return any(label in UNKNOWN for label in _labels(opened(TRAIN), column))

    without: list[str] = []
    for name in (name for name in TEST_NAMES if name in names):
        if predicts_tokens(task) or TRAIN not in names or not all(column in table.columns for table in opened(TRAIN)):
            return name, ()
        seen = _unknown(opened(name), column)
        if not seen or (seen != {""} and unknown_trained()):
            return name, _notes(without)
        without.append(name)
    return "", _notes(without)


def _notes(without: list[str]) -> tuple[str, ...]:
    return tuple(f"the rows of {name} have no labels (none, or -1), so it is not tested on" for name in without)


def _unknown(tested: Iterable[Table], column: str) -> set[str]:
    """What the rows that would be tested on have for a label; empty if there is no row, or one has a label."""
    seen = set[str]()
    for label in _labels(tested, column):
        if label and label not in UNKNOWN:
            return set()
        seen.add(label)
    return seen


def _labels(tables: Iterable[Table], column: str) -> Iterator[str]:
    """Labels as texts; empty for none."""
    for table in tables:
        narrow = replace(table, only=column) if isinstance(table, ArrowTable) else table
        for _, values in narrow.rows():
            value = values.get(column)
            yield "" if value is None or (isinstance(value, float) and math.isnan(value)) else str(value).strip()
