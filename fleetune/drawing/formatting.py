"""Numbers with units, and labels of timeline rows, as text and charts show them."""

import math
from collections.abc import Sequence
from os.path import commonprefix
from typing import NamedTuple

from fleetune.contracts.metrics import TimelineRow
from fleetune.contracts.plan import SPELLING

SECONDS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns"))
BYTES = ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"), (1.0, "B"))


def seconds(value: float) -> str:
    """Format seconds: `1.23 ms`, or `2 min 5 s` from 120 s on."""
    if value >= 120:
        minutes, rest = divmod(round(value), 60)
        return f"{minutes} min {rest} s"
    return _scaled(value, SECONDS)


def size(value: float) -> str:
    """Format bytes in powers of ten: `4.56 MB`."""
    return _scaled(value, BYTES)


def rate(value: float) -> str:
    """Format bytes per second: `12.5 MB/s`."""
    return size(value) + "/s"


def number(value: float) -> str:
    """Format a number with at most four significant digits; whole numbers in full."""
    return str(int(value)) if value == int(value) and abs(value) < 1e15 else f"{value:.4g}"


def percent(value: float) -> str:
    """Format a share as a signed percentage: `+12.3 %`."""
    return f"{value * 100:+.1f} %"


def steps(until: float, most: int = 8) -> list[float]:
    """Axis ticks from 0 to `until`: at most `most` after 0, spaced by 1, 2 or 5 times a power of ten."""
    if until <= 0:
        return [0.0]
    exponent = math.floor(math.log10(until / most))
    steps_of_ten = (factor * 10.0**power for power in (exponent, exponent + 1) for factor in (1, 2, 5))
    step = next(step for step in steps_of_ten if until / step <= most)
    return [k * step for k in range(int(until / step + 1e-9) + 1)]


def _scaled(value: float, scale: tuple[tuple[float, str], ...]) -> str:
    if value == 0:
        return f"0 {'s' if scale is SECONDS else 'B'}"
    for factor, name in scale:
        if abs(value) >= factor * 0.9995:
            return f"{value / factor:.3g} {name}" if abs(value) < 999.5 * factor else f"{value / factor:.0f} {name}"
    factor, name = scale[-1]
    return f"{value / factor:.3g} {name}"


LETTER_NAMES = {"F": "forward", "B": "backward", "R": "all-reduce", "U": "update", "O": "other"}


class RowLabel(NamedTuple):
    """Letter (F, B, R, U, or O for other actions) and micro-batch of a timeline row."""

    letter: str
    micro_batch: int


def parse_label(row: TimelineRow) -> RowLabel:
    """Parse the letter and micro-batch from a row's action."""
    found = SPELLING.fullmatch(row.action)
    return RowLabel(found[3], int(found[4])) if found else RowLabel("O", 0)


def track_names(rows: Sequence[TimelineRow]) -> list[str]:
    """Names of devices in order of appearance, then of links."""
    names = list(dict.fromkeys(row.device for row in rows))
    return [n for n in names if ">" not in n] + [n for n in names if ">" in n]


def lane_names(rows: Sequence[TimelineRow]) -> list[str]:
    """Names of lanes, sorted by length and then name, so that client-2 precedes client-10."""
    return sorted({row.lane for row in rows}, key=lambda name: (len(name), name))


def short_names(names: Sequence[str]) -> list[str]:
    """Shorten names to their numbers (`client-1`, `client-12` to 1, 12); names without numbers are unchanged."""
    start = commonprefix(list(names)).rstrip("0123456789")
    numbers = [name.removeprefix(start) for name in names]
    return numbers if len(names) > 1 and all(map(str.isdigit, numbers)) else list(names)
