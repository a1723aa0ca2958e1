"""Labels of axes and of timeline rows."""

import math
from collections.abc import Sequence
from os.path import commonprefix
from typing import NamedTuple

from fleetune.contracts.metrics import TimelineRow
from fleetune.contracts.plan import SPELLING


def axis_ticks(until: float, most: int = 8) -> list[float]:
    """Axis ticks from 0 to `until`: at most `most` after 0, spaced by 1, 2 or 5 times a power of ten."""
    if until <= 0:
        return [0.0]
    exponent = math.floor(math.log10(until / most))
    steps_of_ten = (factor * 10.0**power for power in (exponent, exponent + 1) for factor in (1, 2, 5))
    step = next(step for step in steps_of_ten if until / step <= most)
    return [k * step for k in range(int(until / step + 1e-9) + 1)]


LETTER_NAMES = {"F": "forward", "B": "backward", "R": "all-reduce", "U": "update", "A": "average", "O": "other"}


class RowLabel(NamedTuple):
    """Letter (F, B, R, U, A, or O for other actions) and micro-batch of a timeline row."""

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
