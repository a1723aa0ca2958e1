"""What a round is on the mean: averages over lanes, lanes that rest, and lanes of fewer micro-batches."""

from dataclasses import replace

import pytest

from fleetune.contracts.metrics import Forecast, LinkBytes, RoundMetrics, TimelineRow, TrainingMetrics
from fleetune.contracts.plan import Lane, Plan
from flows.comparison.figures import loss_curve
from flows.comparison.mean_rounds import average_share_s, forecast_figures, mean_samples, measured_figures
from flows.comparison.record import within_noise
from tests.support.clock import fleets
from tests.support.drawing.contents import by_hand
from tests.support.flows.comparison.stand_in import training

AVERAGE = (
    TimelineRow(device="a>b", lane="y", action="y/0A0", start_s=0.0, end_s=6.0, bytes=600),
    TimelineRow(device="b>a", lane="y", action="y/0A0", start_s=6.0, end_s=12.0, bytes=600),
)


NONE = Forecast(round_s=1.0, rows=(), busy_s=(), memory_bytes=(), link_bytes=())


def two_lanes(every: int, rounds: int = 0, micro_batches: int = 0) -> Plan:
    """Lanes x and y of four micro-batches of four samples; y takes fewer steps, or runs fewer micro-batches."""
    (segment,) = fleets.PLAN.lanes[0].segments[:1]
    y = Lane(name="y", segments=(segment,), rounds=rounds, micro_batches=micro_batches)
    lanes = (Lane(name="x", segments=(segment,)), y)
    return replace(fleets.PLAN, lanes=lanes, average_every_rounds=every, micro_batches=4, order=())


def test_samples_are_those_that_are_trained() -> None:
    """y runs one micro-batch of four, then one round of four, then both."""
    assert mean_samples(two_lanes(4)) == 32
    assert mean_samples(two_lanes(4, micro_batches=1)) == 16 + 4
    assert mean_samples(two_lanes(4, rounds=1)) == 16 + 4
    assert mean_samples(two_lanes(4, rounds=1, micro_batches=1)) == 16 + 1


def test_a_forecast_has_its_part_of_an_average() -> None:
    """Every fourth round is followed by an average: a quarter of its seconds and of its bytes."""
    made = by_hand("lanes", average_every_rounds=4)
    plan, said = made.plan.plan, made.forecast
    found = forecast_figures(plan, said)
    assert found.round_s == said.mean_round_s > said.round_s
    both = sum(row.bytes for row in said.average)
    assert found.link_bytes == round(sum(link.bytes for link in said.link_bytes) + both / 4) and both > 0
    never = forecast_figures(replace(plan, average_every_rounds=0), replace(said, average=(), average_every_rounds=0))
    assert never.round_s == said.round_s and never.link_bytes == sum(link.bytes for link in said.link_bytes)


def measured(plan_from_round: int = 0) -> TrainingMetrics:
    """Eight rounds: y rests in three of four, which then take 1 s instead of 3 s; an average takes 12 s."""
    made = training([1.0] * 8, 3.0, plan_from_round)
    rounds = tuple(one if one.round % 4 == 0 else _alone(one) for one in made.rounds)
    rows = (TimelineRow(device="a>b", lane="y", action="y/0F0", start_s=0.0, end_s=1.0, bytes=400),)
    sent = (LinkBytes(source="a", target="b", bytes=1000),)
    return replace(made, rounds=rounds, average=AVERAGE, timeline=rows, link_bytes=sent)


def _alone(one: RoundMetrics) -> RoundMetrics:
    return replace(one, round_s=1.0, resting=("y",))


def test_measured_rounds_count_by_their_kinds() -> None:
    """(3 + 3 * 1 + 12) / 4 s; y sends its 400 bytes in every fourth round, and 1200 after it."""
    plan = two_lanes(4, rounds=1)
    found = measured_figures(plan, measured(), NONE)
    assert found.round_s == pytest.approx(18 / 4)
    assert found.link_bytes == 1000 - 300 + 300
    assert average_share_s(plan, measured(), NONE) == 3.0 and average_share_s(two_lanes(0), measured(), NONE) == 0.0


def test_noise_is_that_of_the_rounds() -> None:
    """Half of what lies between the quartiles, by the median: of 1 to 5 s (4 - 2) / 2 / 3; one round
    alone does not tell it. Bug: it then counted as none, and 2 % made a winner."""
    rounds = training([1.0] * 5, 1.0)
    timed = tuple(replace(one, round_s=float(one.round + 1)) for one in rounds.rounds)
    figures = measured_figures(two_lanes(0), replace(rounds, rounds=timed), NONE)
    assert (figures.round_s, figures.noise) == (3.0, pytest.approx(1 / 3))
    assert measured_figures(two_lanes(0), replace(rounds, rounds=timed[:1]), NONE).noise is None
    assert within_noise(1.0, 1.5, None, 0.0) and not within_noise(1.0, 1.5, 0.1, 0.2)


def test_an_average_that_was_not_measured_counts_as_forecast() -> None:
    """The one after the last round comes with no later round's report: it would make short trainings look faster."""
    short = replace(measured(), average=())
    said = replace(NONE, average=AVERAGE, average_every_rounds=4)
    plan = two_lanes(4, rounds=1)
    assert measured_figures(plan, short, said) == measured_figures(plan, measured(), NONE)


def test_rounds_of_another_plan_do_not_count() -> None:
    """The first four rounds were another plan's and took a hundred times as long; none of this one's: the median."""
    slow = measured(plan_from_round=4)
    assert measured_figures(two_lanes(4, rounds=1), slow, NONE).round_s == pytest.approx(18 / 4)
    none = replace(slow, rounds=slow.rounds[:4])
    assert measured_figures(two_lanes(4, rounds=1), none, NONE).round_s == pytest.approx(3.0 + 3.0)


def test_a_loss_comes_after_the_averages_before_it() -> None:
    """The average after round 3 is over when round 4 begins."""
    curve = loss_curve(training([1.0] * 6, round_s=1.0), 0)
    late = loss_curve(training([1.0] * 6, round_s=1.0), 4, 12.0)
    assert [point.seconds for point in curve] == [5.0, 6.0] and [point.seconds for point in late] == [17.0, 18.0]
