"""A timeline as a Gantt chart: devices and links as tracks, work and transfers as bars."""

from collections.abc import Sequence

from fleetune.contracts.timeline import Row
from fleetune.drawing.marks import WORDS, Mark, mark, tracks
from fleetune.drawing.quantities import seconds, size, steps
from fleetune.drawing.svg import WIDTH, alone, bar, canvas, label, line

TRACK, BAR, TOP, BOTTOM = 24, 17, 30, 24
LETTER_WIDTH = 6.6


def gantt(rows: Sequence[Row], title: str) -> str:
    """Rows of one round as an SVG file: colours for forward, backward and all-reduce, a time axis, tooltips."""
    return alone(gantt_chart(rows, title))


def gantt_chart(rows: Sequence[Row], title: str, *, until_s: float | None = None, order: Sequence[str] = ()) -> str:
    """The same for a page that has the colours. `until_s` and `order` (names of tracks) let charts share their scale
    and their lines."""
    rows = tuple(rows)
    names = list(dict.fromkeys((*order, *tracks(rows))))
    until_s = until_s or max((row.end_s for row in rows), default=0.0) or 1e-9
    left = 16 + LETTER_WIDTH * max((len(name) for name in names), default=0)
    scale = (WIDTH - left - 12) / until_s
    bottom = TOP + TRACK * len(names)
    parts = [label(0, 14, title, font_weight="600"), *_legend(rows)]
    for place, name in enumerate(names):
        y = TOP + TRACK * place
        if place % 2 == 0:
            parts.append(bar(0, y, (WIDTH, TRACK), name, class_="soft"))
        parts.append(label(4, y + 16, name, class_="muted" if ">" in name else ""))
    for tick_s in steps(until_s):
        x = left + tick_s * scale
        parts.append(line(x, TOP, x, bottom, class_="rule"))
        parts.append(label(x, bottom + 16, seconds(tick_s), class_="muted", text_anchor="middle"))
    for row in rows:
        parts += _bar(row, left + row.start_s * scale, TOP + TRACK * names.index(row.device), scale)
    return canvas(parts, bottom + BOTTOM, title)


def _bar(row: Row, x: float, y: float, scale: float) -> list[str]:
    shown = mark(row)
    wide = (row.end_s - row.start_s) * scale
    y += (TRACK - BAR) / 2
    parts = [bar(x, y, (wide, BAR), _hint(row, shown), class_=f"bar {shown.letter}{' link' * row.is_transfer}")]
    text = "R" if shown.letter == "R" else str(shown.micro_batch)
    if shown.letter != "O" and wide > LETTER_WIDTH * len(text) + 3:
        parts.append(label(x + wide / 2, y + 12.5, text, class_="on", text_anchor="middle", pointer_events="none"))
    return parts


def _hint(row: Row, shown: Mark) -> str:
    what = f"{row.action} ({WORDS[shown.letter]}) on {row.device}"
    when = f"{seconds(row.start_s)} to {seconds(row.end_s)}, {seconds(row.end_s - row.start_s)}"
    return f"{what}\n{when}" + (f"\n{size(row.bytes)}" if row.bytes else "")


def _legend(rows: tuple[Row, ...]) -> list[str]:
    """The colours in use, at the right of the title."""
    used = [letter for letter in WORDS if any(mark(row).letter == letter for row in rows)]
    parts, x = [], float(WIDTH - 12)
    for letter in reversed(used):
        x -= LETTER_WIDTH * len(WORDS[letter]) + 8
        parts.append(label(x, 14, WORDS[letter], class_="muted"))
        x -= 16
        parts.append(bar(x, 4, (11, 11), WORDS[letter], class_=letter))
        x -= 8
    return parts
