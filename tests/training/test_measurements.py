"""The offset of another machine's clock, and the timeline rows of rounds."""

import random
import statistics
import weakref
from dataclasses import replace

import pytest

from fleetune.contracts.metrics import RoundMetrics, TimelineRow
from fleetune.errors import Refused
from fleetune.links.message import MAX_HEADER_BYTES
from fleetune.training.exchange import DRIFT, MAX_SAMPLES, ClockOffset
from fleetune.training.measurements import (
    KEPT_ROUNDS,
    MeasuredRound,
    RoundMeasurements,
    decode_rows,
    encode_rows,
)
from tests.support.training.runs import plan


def beat(offset: ClockOffset, at_s: float, true_s: float, there_s: float = 0.0, back_s: float = 0.0) -> None:
    """Add a round trip with the given one-way times to a clock that is `true_s` ahead."""
    came_s = at_s + there_s + true_s
    offset.add(at_s, came_s, came_s + 0.5, at_s + there_s + 0.5 + back_s)


def test_the_offset_follows_a_drifting_clock_for_hours() -> None:
    """Bug: the offset was measured only before the first round; a drift of 50 ppm is 0.18 s after an hour.

    Nine in ten beats are slow in one direction; one good beat a minute keeps the error small.
    """
    rng = random.Random(1)
    offset = ClockOffset()
    for number in range(2 * 3600):
        slow = rng.random() < 0.9
        true_s = 1000.0 + 5e-5 * number
        beat(offset, float(number), true_s, 0.2 * rng.random() if slow else 0.0005, 0.0005)
        assert number < 60 or abs(offset.offset_at_s(float(number)) - true_s) < 0.015
    assert len(offset) <= MAX_SAMPLES


def test_the_offset_comes_from_the_nearest_measurement() -> None:
    """Of two exact measurements the one nearer in time gives the offset."""
    offset = ClockOffset()
    assert offset.offset_at_s(5.0) == 0.0
    for at_s, true_s in ((0.0, 7.0), (1000.0, 7.05)):
        beat(offset, at_s, true_s)
    assert [offset.offset_at_s(at_s) for at_s in (-10.0, 400.0, 600.0, 2000.0)] == pytest.approx([7.0, 7.0, 7.05, 7.05])


def test_a_slow_round_trip_does_not_replace_a_quick_one() -> None:
    """The quick one counts until drift may have made it less accurate."""
    offset = ClockOffset()
    beat(offset, 0.0, 7.0)
    beat(offset, 10.0, 7.0, there_s=0.1)
    assert offset.offset_at_s(10.0) == pytest.approx(7.0)
    late_s = 0.06 / DRIFT
    beat(offset, late_s, 7.0, there_s=0.1)
    assert offset.offset_at_s(late_s) == pytest.approx(7.05)


def test_the_time_before_an_answer_is_sent_does_not_count() -> None:
    """An answer after minutes measures the clock as well as an immediate one."""
    offset = ClockOffset()
    offset.add(sent_s=0.0, remote_received_s=100.001, remote_sent_s=400.001, received_s=300.002)
    assert offset.offset_at_s(0.0) == pytest.approx(100.0, abs=1e-9)


def test_an_impossible_round_trip_is_ignored() -> None:
    """An answer from before the question, or with times that are not finite, is ignored."""
    offset = ClockOffset()
    offset.add(10.0, 5.0, 9.0, 11.0)
    offset.add(10.0, float("nan"), float("nan"), 11.0)
    offset.add(10.0, float("inf"), float("inf"), 11.0)
    assert offset.offset_at_s(10.0) == 0.0


def row(device: str = "d0", action: str = "main/0F0", start_s: float = 1.5, bytes: int = 0) -> TimelineRow:
    """Return a row of one second."""
    return TimelineRow(device=device, lane="main", action=action, start_s=start_s, end_s=start_s + 1, bytes=bytes)


def test_rows_of_many_micro_batches_fit_into_a_message() -> None:
    """Bug: rows were in the header, and a round of some 3,400 micro-batches was refused."""
    rows = [row(name, f"main/0F{n}", n / 7, n) for n in range(20_000) for name in ("d0", "d1>d0")]
    part = encode_rows(rows)
    assert len(part) > MAX_HEADER_BYTES
    assert decode_rows("d0", [part]) == [(r.device, r.action, r.start_s, r.end_s, r.bytes) for r in rows]


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
def test_malformed_rows_are_refused_with_their_sender(parts: list[bytes]) -> None:
    """The refusal names the sender, also for rows that another device has to report."""
    with pytest.raises(Refused, match="^device d0 reports a round in rows that cannot be read"):
        decode_rows("d0", parts)


class Rows(list[TimelineRow]):
    """Rows of which one can tell whether anything holds them."""


def test_rows_of_a_few_rounds_near_the_median_are_kept() -> None:
    """Bug: every round's rows stayed in memory. Slow first rounds must not decide which rows are kept."""
    rng = random.Random(2)
    seen = RoundMeasurements()
    lasting_s = [5.0 + rng.random() if n < 300 else 1.0 + rng.random() for n in range(2000)]
    alive: list[weakref.ref[Rows]] = []
    for number, round_s in enumerate(lasting_s):
        rows = Rows([row(start_s=float(number))])
        alive = [each for each in (*alive, weakref.ref(rows)) if each() is not None]
        seen.add(number, MeasuredRound(round_s, rows, {("d0", "d1"): number}))
        del rows
    assert len([each for each in alive if each() is not None]) <= KEPT_ROUNDS + 1, "and the newest"
    median_s = statistics.median(lasting_s)
    nearest = seen.median_round(median_s)
    assert nearest is not None
    number = nearest.sent_bytes["d0", "d1"]
    assert nearest.rows == [row(start_s=float(number))] and abs(lasting_s[number] - median_s) < 0.02


def test_rows_of_a_few_averages_near_the_median_are_kept() -> None:
    """Bug: every average's rows stayed in memory, although one is reported."""
    rng = random.Random(3)
    seen, lasting_s = RoundMeasurements(), [1.0 + rng.random() for _ in range(2000)]
    assert seen.median_average() == []
    alive: list[weakref.ref[Rows]] = []
    for number, average_s in enumerate(lasting_s):
        rows = Rows([replace(row(start_s=0.0, bytes=number), end_s=average_s)])
        alive = [each for each in (*alive, weakref.ref(rows)) if each() is not None]
        seen.add_average(rows)
        del rows
        if number < KEPT_ROUNDS:  # as long as all are kept, it is the very one
            (found,) = seen.median_average()
            assert found.end_s == sorted(lasting_s[: number + 1])[(number + 1) // 2]
    del found
    assert len([each for each in alive if each() is not None]) <= KEPT_ROUNDS
    (found,) = seen.median_average()
    assert lasting_s[found.bytes] == found.end_s and abs(found.end_s - statistics.median(lasting_s)) < 0.02


def test_without_rounds_there_is_no_median_round() -> None:
    """An attempt without a new round reports no rows."""
    assert RoundMeasurements().median_round(1.0) is None


def test_peaks_of_the_first_plan_are_told_apart() -> None:
    """Bug: a device that took over a lost one's layers used more memory than was forecast of another plan."""
    measured, round = RoundMeasurements(), MeasuredRound(1.0, [], {})
    later = replace(plan(("u",), [], [[8]]), revision=1)
    measured.add_peak("a", 5)
    measured.add(0, round)
    measured.revised(1, later)
    measured.add_peak("a", 9)
    measured.add_peak("b", 2)
    assert measured.peaks == {"a": 9, "b": 2} and measured.peaks_of_first == {"a": 5}
    assert list(measured.plans.values()) == [later] and measured.revised_from_round == 1


def test_rounds_after_a_move_are_of_another_plan() -> None:
    """Bug: after blocks had moved, the measured rounds of both assignments were held against the forecast of the first.

    An attempt that begins after the move has no other rounds, and reports those.
    """
    moved = RoundMetrics(round=3, loss=1.0, gradient_norm=None, learning_rate=0.1, round_s=2.0, moves={"a": ("u",)})
    for first in (0, 4):
        measured = RoundMeasurements()
        measured.moved([moved] if first else [])
        for number in range(first, 8):
            measured.add(number, MeasuredRound(float(number), [], {("a", "b"): number}))
            measured.moved([moved] if number == 3 else [])
        assert measured.revised_from_round == 4
        found = measured.median_round(7.0)
        assert found is not None and found.round_s == (7.0 if first else 3.0)
