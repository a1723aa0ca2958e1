"""The other machine's clock, as beats tell it."""

import random

import pytest

from fleetune.training.clock_offset import DRIFT, MOST_SAMPLES, ClockOffset


def beat(offset: ClockOffset, at_s: float, true_s: float, there_s: float = 0.0, back_s: float = 0.0) -> None:
    """A round trip of given ways there and back, to a clock that is `true_s` ahead."""
    came_s = at_s + there_s + true_s
    offset.add(at_s, came_s, came_s + 0.5, at_s + there_s + 0.5 + back_s)


def test_a_clock_that_drifts_is_followed_for_hours() -> None:
    """Once the offset was measured before the first round and never again: a drift of 50 ppm is 0.18 s after an hour.

    Of beats nine in ten are slow in one direction: once a minute has brought a good one, the error stays small.
    """
    rng = random.Random(1)
    offset = ClockOffset()
    for number in range(2 * 3600):
        slow = rng.random() < 0.9
        true_s = 1000.0 + 5e-5 * number
        beat(offset, float(number), true_s, 0.2 * rng.random() if slow else 0.0005, 0.0005)
        assert number < 60 or abs(offset.at_s(float(number)) - true_s) < 0.015
    assert len(offset._samples) <= MOST_SAMPLES


def test_the_offset_is_that_of_its_time() -> None:
    """Of two exact measurements an earlier time goes by the earlier one."""
    offset = ClockOffset()
    assert offset.at_s(5.0) == 0.0
    for at_s, true_s in ((0.0, 7.0), (1000.0, 7.05)):
        beat(offset, at_s, true_s)
    assert [offset.at_s(at_s) for at_s in (-10.0, 400.0, 600.0, 2000.0)] == pytest.approx([7.0, 7.0, 7.05, 7.05])


def test_a_slow_answer_does_not_replace_a_quick_one() -> None:
    """Until the quick one is so old that drift may have made it worse."""
    offset = ClockOffset()
    beat(offset, 0.0, 7.0)
    beat(offset, 10.0, 7.0, there_s=0.1)
    assert offset.at_s(10.0) == pytest.approx(7.0)
    late_s = 0.06 / DRIFT
    beat(offset, late_s, 7.0, there_s=0.1)
    assert offset.at_s(late_s) == pytest.approx(7.05)


def test_the_time_an_answer_waited_there_does_not_count() -> None:
    """A coordinator that answers after minutes tells its clock as well as one that answers at once."""
    offset = ClockOffset()
    offset.add(sent_s=0.0, there_s=100.001, answered_s=400.001, back_s=300.002)
    assert offset.at_s(0.0) == pytest.approx(100.0, abs=1e-9)


def test_an_impossible_round_trip_says_nothing() -> None:
    """An answer from before the question, or no number at all, is left out."""
    offset = ClockOffset()
    offset.add(10.0, 5.0, 9.0, 11.0)
    offset.add(10.0, float("nan"), float("nan"), 11.0)
    offset.add(10.0, float("inf"), float("inf"), 11.0)
    assert offset.at_s(10.0) == 0.0
