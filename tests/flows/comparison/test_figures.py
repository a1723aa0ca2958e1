"""Figures of a training: loss by seconds, the loss that all reach, and thinned curves."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flows.comparison.figures import MOST_POINTS, WINDOW_ROUNDS, common_loss, loss_curve, thinned, with_target
from flows.comparison.record import ComparedStrategy, LossPoint
from tests.support.flows.comparison.stand_in import training


def test_a_loss_is_a_mean_of_rounds() -> None:
    """The first point is the mean of the first whole window, at the end of its last round."""
    curve = loss_curve(training([6.0, 5.0, 4.0, 3.0, 2.0, 1.0], round_s=2.0))
    assert curve == (LossPoint(seconds=10.0, loss=4.0), LossPoint(seconds=12.0, loss=3.0))
    assert WINDOW_ROUNDS == 5


def test_a_training_shorter_than_the_window() -> None:
    """Fewer rounds than the window are one point; none are none."""
    assert loss_curve(training([3.0, 1.0], round_s=1.0)) == (LossPoint(seconds=2.0, loss=2.0),)
    assert loss_curve(training([], round_s=1.0)) == ()


def test_rounds_of_another_plan_count_as_this_plans() -> None:
    """A training that another, slower plan began is not charged with that plan's seconds."""
    curve = loss_curve(training([1.0] * 6, round_s=1.0, plan_from_round=4))
    assert [point.seconds for point in curve] == [5.0, 6.0]


def test_the_common_loss() -> None:
    """The lowest loss that every curve reaches, so that each has a time for it; none without curves."""
    falling = [LossPoint(seconds=float(k), loss=loss) for k, loss in enumerate((3.0, 1.0, 2.0))]
    flat = [LossPoint(seconds=1.0, loss=2.5)]
    assert common_loss([falling, flat, []]) == 2.5
    assert common_loss([]) is None


@given(st.lists(st.floats(0.1, 10), min_size=1, max_size=3 * MOST_POINTS))
def test_thinning_changes_no_time(losses: list[float]) -> None:
    """The moment of the target comes from the whole curve; the thinned one keeps its ends and is short."""
    points = tuple(LossPoint(seconds=float(k), loss=loss) for k, loss in enumerate(losses))
    row = with_target(ComparedStrategy(name="dp", state="trained", losses=points), min(losses))
    assert row.target_s == losses.index(min(losses))
    assert len(row.losses) <= MOST_POINTS and (row.losses[0], row.losses[-1]) == (points[0], points[-1])
    assert thinned(row.losses) == row.losses


def test_a_rank_needs_no_time() -> None:
    """A round that takes no time has no pace, and divides nothing by zero."""
    curve = loss_curve(training([1.0] * 5, round_s=0.0))
    assert curve[0].seconds == pytest.approx(0.0)
