"""Rows of rounds: how they travel, and which are kept."""

import random
import statistics

import pytest

from fleetune.contracts.metrics import TimelineRow
from fleetune.errors import Refused
from fleetune.links.message import MAX_HEADER_BYTES
from fleetune.training.measurements import KEPT_ROUNDS, Measurements, raw_rows, rows_part


def row(device: str = "d0", action: str = "main/0F0", start_s: float = 1.5, bytes: int = 0) -> TimelineRow:
    """A row that ends a second later."""
    return TimelineRow(device=device, lane="main", action=action, start_s=start_s, end_s=start_s + 1, bytes=bytes)


def test_rows_of_many_micro_batches_arrive() -> None:
    """Once rows stood in the header, and a round of some 3,400 micro-batches ended in its refusal."""
    rows = [row(name, f"main/0F{n}", n / 7, n) for n in range(20_000) for name in ("d0", "d1>d0")]
    part = rows_part(rows)
    assert len(part) > MAX_HEADER_BYTES
    assert raw_rows("d0", [part]) == [[r.device, r.action, r.start_s, r.end_s, r.bytes] for r in rows]


@pytest.mark.parametrize(
    "parts",
    [
        [],
        [b"[]", b"[]"],
        [b"\xff"],
        [b"7"],
        [b"[7]"],
        [b'[["d0","main/0F0",0,1]]'],
        [b'[["d0","main/0F0",0,NaN,0]]'],
        [b'[["d0","main/0F0",0,1e999,0]]'],
        [b'[["d0","main/0F0","0",1,0]]'],
        [b'[["d0","main",0,1,0]]'],
        [b'[["d0",5,0,1,0]]'],
        [b'[[5,"main/0F0",0,1,0]]'],
        [b'[["d0","main/0F0",0,1,-1]]'],
        [b'[["d0","main/0F0",0,1,true]]'],
        [b'[["d1","main/0F0",0,1,0]]'],
        [b'[["d0>d1","main/0F0",0,1,0]]'],
        [b"[" * 100_000],
    ],
    ids=str,
)
def test_rows_that_are_none_are_refused_by_name(parts: list[bytes]) -> None:
    """Whoever sends them is named: also for rows that are another device's to report."""
    with pytest.raises(Refused, match="^device d0 reports a round in rows that cannot be read"):
        raw_rows("d0", parts)


def test_rows_are_kept_of_few_rounds_near_the_median() -> None:
    """Once every round's rows stayed in memory for ever; a slow beginning must not decide which ones do."""
    rng = random.Random(2)
    seen = Measurements()
    lasting_s = [5.0 + rng.random() if n < 300 else 1.0 + rng.random() for n in range(2000)]
    for number, round_s in enumerate(lasting_s):
        seen.add(number, round_s, [row(start_s=float(number))], {("d0", "d1"): number})
        assert len(seen._kept) <= KEPT_ROUNDS
    median_s = statistics.median(lasting_s)
    rows, sent_bytes = seen.typical(median_s)
    number = sent_bytes["d0", "d1"]
    assert rows == [row(start_s=float(number))] and abs(lasting_s[number] - median_s) < 0.02


def test_without_rounds_nothing_is_typical() -> None:
    """An attempt that had no round left reports no rows."""
    assert Measurements().typical(1.0) == ([], {})
