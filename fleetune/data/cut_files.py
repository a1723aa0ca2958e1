"""CSV files that may have been cut off: half a label at the end reads as a class of its own."""

import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from fleetune.contracts.tasks import predicts_number, predicts_tokens
from fleetune.data.examples import SEPARATOR
from fleetune.data.tables import CsvTable, DataSource


def cut_notes(source: DataSource, task: str) -> Iterator[str]:
    """A sentence for each CSV file that ends within a line, in a label that no other row has."""
    if predicts_tokens(task) or predicts_number(task):
        return
    tables, column = (*source.train, *source.test), source.label_column
    open_ended = [
        table
        for table in tables
        if isinstance(table, CsvTable) and table.columns[-1] == column and not _ends_a_line(table.path)
    ]
    if not open_ended:
        return
    counts, last = Counter[str](), dict[str, str]()
    for table in tables:
        for _, values in table.rows():
            labels = [each.strip() for each in str(values.get(column)).split(SEPARATOR)]
            counts.update(labels)
            last[table.name] = labels[-1]
    for table in open_ended:
        if counts[last.get(table.name, "")] == 1:
            yield (
                f"the last line of {table.path.name} has no line end, and no other row has its label, "
                f"{last[table.name]!r}: the file may have been cut off"
            )


def _ends_a_line(path: Path) -> bool:
    with path.open("rb") as file:
        file.seek(-1, os.SEEK_END)
        return file.read() in (b"\n", b"\r")
