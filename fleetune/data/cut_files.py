"""CSV files that may have been cut off: half a label at the end reads as a class of its own."""

import csv
import os
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from fleetune.contracts.tasks import predicts_number, predicts_tokens
from fleetune.data.examples import SEPARATOR
from fleetune.data.tables import CsvTable, DataSource

LONGEST = 1 << 16
"""Most bytes that are read of a line."""


def cut_notes(source: DataSource, task: str) -> Iterator[str]:
    """A sentence for each CSV file that ends within a line, in a label that no other row has."""
    if predicts_tokens(task) or predicts_number(task):
        return
    tables, column = source.tables, source.label_column
    for table in tables:
        if not isinstance(table, CsvTable) or table.columns[-1] != column:
            continue
        line = _unended_line(table.path)
        last = _labels(next(csv.reader([line]))[-1])[-1] if line else ""
        every = (label for other in tables for _, values in other.rows() for label in _labels(values.get(column)))
        if last and len([*islice((label for label in every if label == last), 2)]) == 1:
            yield (
                f"the last line of {table.path.name} has no line end, and no other row has its label, "
                f"{last!r}: the file may have been cut off"
            )


def _labels(value: object) -> list[str]:
    return [each.strip() for each in str(value).split(SEPARATOR)]


def _unended_line(path: Path) -> str:
    """The end of a file, from its last line on; empty if that has an end."""
    with path.open("rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - LONGEST))
        end = file.read()
    return "" if end.endswith((b"\n", b"\r")) else end.splitlines()[-1].decode("utf-8-sig", "replace")
