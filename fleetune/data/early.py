"""What one look at a source shows, before anything is started for it."""

import math
from itertools import islice

from fleetune.contracts.run_config import BUILT_IN, DataRequest
from fleetune.data.examples import check_fits, examples
from fleetune.data.needs import InputNeeds
from fleetune.data.sources import open_source, source_path
from fleetune.data.splits import held_out, prove_test_rows
from fleetune.data.table import Listed, Source, Table
from fleetune.errors import Refused

COLUMNS = {"digits": ("image", "label"), "docstrings": ("text", "label"), "stdlib-sources": ("text",)}
"""Of the built-in sets, which take seconds to make: only a number of test rows is worth that."""


def prove_data(request: DataRequest, task: str) -> None:
    """Refuse columns that are not there, splits without rows, a first row that is none, and fewer test rows than are
    asked for. Names on the hub are left to preparation: a look at them is a download."""
    needs = InputNeeds(task=task)
    if request.source in BUILT_IN:
        row = dict.fromkeys(COLUMNS[request.source], "")
        stand_in = Source(
            train=(Listed(owner=request.source, values=(row,)),), packed=request.source == "stdlib-sources"
        )
        check_fits(request, stand_in, needs)
        if request.test_samples is not None and not stand_in.packed:
            _prove_test_rows(request, open_source(request), request.test_samples)
        return
    if source_path(request.source) is None:
        return
    source = open_source(request)
    check_fits(request, source, needs)
    for tables in (source.train, source.test):
        first = next((example for table in tables for example in examples(table, source, needs)), None)
        if tables and first is None:
            raise Refused(f"{tables[0].owner}: no samples in it; give at least one row")
    if request.test_samples is not None:
        _prove_test_rows(request, source, request.test_samples)


def _prove_test_rows(request: DataRequest, source: Source, asked: int) -> None:
    if source.test:
        return prove_test_rows(request, _count(source.test, asked))
    enough = math.ceil(asked / request.test_fraction) + 1
    prove_test_rows(request, held_out(_count(source.train, enough), request.test_fraction))


def _count(tables: tuple[Table, ...], most: int) -> int:
    return sum(1 for _ in islice((row for table in tables for row in table.rows()), most))
