"""What a timeline row is, for everything that draws it."""

from typing import NamedTuple

from fleetune.contracts.action import SPELLING
from fleetune.contracts.timeline import Row

WORDS = {"F": "forward", "B": "backward", "R": "all-reduce", "O": "other"}


class Mark(NamedTuple):
    """The letter (F, B, R, or O for what is none of these) and the micro-batch of a row."""

    letter: str
    micro_batch: int


def mark(row: Row) -> Mark:
    """Read from the spelling of its action."""
    found = SPELLING.fullmatch(row.action)
    return Mark(found[3], int(found[4])) if found else Mark("O", 0)


def tracks(rows: tuple[Row, ...]) -> list[str]:
    """Devices in order of appearance, then links."""
    names = list(dict.fromkeys(row.device for row in rows))
    return [n for n in names if ">" not in n] + [n for n in names if ">" in n]
