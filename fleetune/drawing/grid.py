"""A timeline as text: a line per device and link, a column per span of time."""

from collections.abc import Sequence

from fleetune.contracts.timeline import Row
from fleetune.drawing.marks import mark, tracks
from fleetune.drawing.quantities import seconds

LEGEND = "0-9 forward of a micro-batch (its last digit), a-j its backward (a is 0), = all-reduce, * other, . idle"


def grid(rows: Sequence[Row], width: int = 80) -> str:
    """Rows of one round drawn over `width` columns of equal time, a legend below.

    A column shows what runs at its middle; what is too short to be seen there takes the column where it starts, if
    that is free.
    """
    rows = tuple(rows)
    if not rows:
        return "(nothing ran)\n"
    until_s = max(row.end_s for row in rows) or 1e-9
    names = tracks(rows)
    margin = max(len(name) for name in names)
    lines = []
    for name in names:
        cells = _cells([row for row in rows if row.device == name], width, until_s)
        lines.append(f"{name:>{margin}} {cells}")
    scale = f"{'':>{margin}} 0{seconds(until_s):>{width - 1}}"
    return "\n".join([scale, *lines, f"{'':>{margin}} {LEGEND}"]) + "\n"


def _cells(rows: list[Row], width: int, until_s: float) -> str:
    cells = ["."] * width
    unseen = []
    for row in rows:
        first = int(row.start_s / until_s * width + 0.5)
        end = int(row.end_s / until_s * width + 0.5)
        if end > first:
            cells[first:end] = _sign(row) * (end - first)
        else:
            unseen.append(row)
    for row in unseen:
        place = min(int(row.start_s / until_s * width), width - 1)
        if cells[place] == ".":
            cells[place] = _sign(row)
    return "".join(cells)


def _sign(row: Row) -> str:
    letter, micro_batch = mark(row)
    if letter == "F":
        return str(micro_batch % 10)
    if letter == "B":
        return "abcdefghij"[micro_batch % 10]
    return "=" if letter == "R" else "*"
