"""A timeline as text: a line per device and link, a column per span of time."""

from collections.abc import Sequence

from fleetune.contracts.metrics import TimelineRow
from fleetune.drawing.marks import lanes, mark, tracks
from fleetune.drawing.quantities import seconds

_NAMED_LANES = 10


def grid(rows: Sequence[TimelineRow], width: int = 80) -> str:
    """Rows of one round drawn over `width` columns of equal time, a legend below. Signs tell micro-batches; where there
    are several lanes, which are the more confusing, they tell these.

    A column shows what runs at its middle; what is too short to be seen there takes the column where it starts, if
    that is free.
    """
    rows = tuple(rows)
    if not rows:
        return "(nothing ran)\n"
    until_s = max(row.end_s for row in rows) or 1e-9
    names, streams = tracks(rows), lanes(rows)
    margin = max(len(name) for name in names)
    lines = []
    for name in names:
        mine = [(row, _sign(row, streams)) for row in rows if row.device == name]
        cells = _cells(mine, width, until_s)
        lines.append(f"{name:>{margin}} {cells}")
    scale = f"{'':>{margin}} 0{seconds(until_s):>{width - 1}}"
    return "\n".join([scale, *lines, f"{'':>{margin}} {_legend(rows, streams)}"]) + "\n"


def _cells(rows: list[tuple[TimelineRow, str]], width: int, until_s: float) -> str:
    cells = ["."] * width
    unseen = []
    for row, sign in rows:
        first = int(row.start_s / until_s * width + 0.5)
        end = int(row.end_s / until_s * width + 0.5)
        if end > first:
            cells[first:end] = sign * (end - first)
        else:
            unseen.append((row, sign))
    for row, sign in unseen:
        place = min(int(row.start_s / until_s * width), width - 1)
        if cells[place] == ".":
            cells[place] = sign
    return "".join(cells)


def _sign(row: TimelineRow, streams: list[str]) -> str:
    letter, micro_batch = mark(row)
    number = (streams.index(row.lane) if len(streams) > 1 else micro_batch) % 10
    signs = {"F": str(number), "B": "abcdefghij"[number], "R": "=", "U": "^"}
    return signs.get(letter, "*")


def _legend(rows: tuple[TimelineRow, ...], streams: list[str]) -> str:
    what, which = "a micro-batch", ""
    if len(streams) > 1:
        what = "a lane"
        if len(streams) <= _NAMED_LANES:
            which = " (" + ", ".join(f"{number} {name}" for number, name in enumerate(streams)) + ")"
    digit = which or " (its last digit)"
    update = ", ^ update" if any(mark(row).letter == "U" for row in rows) else ""
    return f"0-9 forward of {what}{digit}, a-j its backward (a is 0), = all-reduce{update}, * other, . idle"
