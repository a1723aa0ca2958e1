"""What a timeline row is, for everything that draws it."""

from collections.abc import Sequence
from os.path import commonprefix
from typing import NamedTuple

from fleetune.contracts.metrics import TimelineRow
from fleetune.contracts.plan import SPELLING

WORDS = {"F": "forward", "B": "backward", "R": "all-reduce", "U": "update", "O": "other"}


class Mark(NamedTuple):
    """The letter (F, B, R, U, or O for what is none of these) and the micro-batch of a row."""

    letter: str
    micro_batch: int


def mark(row: TimelineRow) -> Mark:
    """Read from the spelling of its action."""
    found = SPELLING.fullmatch(row.action)
    return Mark(found[3], int(found[4])) if found else Mark("O", 0)


def tracks(rows: Sequence[TimelineRow]) -> list[str]:
    """Devices in order of appearance, then links."""
    names = list(dict.fromkeys(row.device for row in rows))
    return [n for n in names if ">" not in n] + [n for n in names if ">" in n]


def lanes(rows: Sequence[TimelineRow]) -> list[str]:
    """Names of lanes: shorter ones first, then by name, so that client-2 stands before client-10."""
    return sorted({row.lane for row in rows}, key=lambda name: (len(name), name))


def without_common_start(names: Sequence[str]) -> list[str]:
    """What tells names apart: `client-1` and `client-12` are 1 and 12; names that do not end in numbers are left."""
    start = commonprefix(list(names)).rstrip("0123456789")
    numbers = [name.removeprefix(start) for name in names]
    return numbers if len(names) > 1 and all(map(str.isdigit, numbers)) else list(names)
