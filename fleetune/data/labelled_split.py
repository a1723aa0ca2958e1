"""The splits that are held out: of those that can be, the first whose rows have labels where the training rows do."""

import functools
import math
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import replace

from fleetune.contracts.tasks import predicts_tokens
from fleetune.data.splits import TEST_NAMES, TRAIN, held_out_splits
from fleetune.data.tables import ArrowTable, Table

UNKNOWN = ("-1", "-1.0")
"""What test splits such as those of GLUE have where they do not tell a label."""


def labelled_splits(
    names: Collection[str], opened: Callable[[str], tuple[Table, ...]], column: str, task: str
) -> tuple[str, str, tuple[str, ...]]:
    """Return `held_out_splits` of those with labels, and a sentence for each before them that has none.

    opened: opens the tables of a split, of which no other column is read. Models of tokens read no labels.
    """

    @functools.cache
    def unknown_trained() -> bool:
        return any(label in UNKNOWN for label in _labels(opened(TRAIN), column))

    without: list[str] = []
    unread = predicts_tokens(task) or TRAIN not in names or not all(column in each.columns for each in opened(TRAIN))

    def labelled(name: str) -> bool:
        seen = set() if unread else _unknown(opened(name), column)
        if not seen or (seen != {""} and unknown_trained()):
            return True
        without.append(name)
        return False

    found = held_out_splits(name for name in TEST_NAMES if name in names and labelled(name))
    return *found, tuple(f"the rows of {name} have no labels (none, or -1), so it is not tested on" for name in without)


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
