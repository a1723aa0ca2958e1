"""What a round is on the mean of many: with its part of an average over lanes, and with lanes that rest in some rounds.

Strategies whose lanes are averaged every few rounds can only so be compared with those that never are.
"""

import statistics
from collections.abc import Iterable

from fleetune.contracts.metrics import Forecast, LinkBytes, TimelineRow, TrainingMetrics
from fleetune.contracts.plan import Lane, Plan
from flows.comparison.record import RoundFigures


def mean_samples(plan: Plan) -> float:
    """Samples that a round trains on; each lane has micro-batches of its own, and some rounds without it."""
    return sum(plan.micro_batch_samples * plan.micro_batches_of(lane) * _part(plan, lane) for lane in plan.lanes)


def forecast_figures(plan: Plan, forecast: Forecast) -> RoundFigures:
    """A round as the clock forecasts it."""
    return RoundFigures(
        round_s=forecast.mean_round_s,
        memory_bytes=tuple(one for one in forecast.memory_bytes if one.device in plan.devices),
        link_bytes=_mean_bytes(plan, forecast.link_bytes, forecast.rows, forecast.average),
    )


def measured_figures(plan: Plan, training: TrainingMetrics, forecast: Forecast) -> RoundFigures:
    """A round as it was measured, with the forecast's average where none was measured (the one after the last round
    never is)."""
    kinds_s = _kinds_of_rounds_s(training)
    return RoundFigures(
        round_s=_measured_round_s(training, kinds_s) + average_share_s(plan, training, forecast),
        noise=max((noise for noise in map(_noise, kinds_s) if noise is not None), default=None),
        memory_bytes=training.peak_memory_bytes,
        link_bytes=_mean_bytes(plan, training.link_bytes, training.timeline, training.average or forecast.average),
    )


def average_share_s(plan: Plan, training: TrainingMetrics, forecast: Forecast) -> float:
    """Seconds of an average that fall to each round; 0 for plans without averages."""
    return average_s(training, forecast) / plan.average_every_rounds if plan.average_every_rounds else 0.0


def average_s(training: TrainingMetrics, forecast: Forecast) -> float:
    """Seconds of an average: as measured, or by the forecast where none was."""
    return training.average_s or forecast.average_s


def _kinds_of_rounds_s(training: TrainingMetrics) -> list[list[float]]:
    """Seconds of the rounds that this plan trained, by kind: in some lanes rest, in others gates are scored."""
    kinds: dict[tuple[tuple[str, ...], bool], list[float]] = {}
    for one in training.rounds_as_planned:
        kinds.setdefault((one.resting, bool(one.gates)), []).append(one.round_s)
    return list(kinds.values())


def _measured_round_s(training: TrainingMetrics, kinds_s: list[list[float]]) -> float:
    """The mean of the medians of the kinds of rounds."""
    total = sum(map(len, kinds_s))
    if not total:
        return training.median_round_s
    return sum(len(rounds_s) * statistics.median(rounds_s) for rounds_s in kinds_s) / total


def _noise(rounds_s: list[float]) -> float | None:
    """Half the distance between the quartiles, by the median; None where there are too few rounds to know."""
    if len(rounds_s) < 2 or not (median_s := statistics.median(rounds_s)):
        return None
    first_s, _, last_s = statistics.quantiles(rounds_s, n=4, method="inclusive")
    return (last_s - first_s) / 2 / median_s


def _mean_bytes(
    plan: Plan, links: Iterable[LinkBytes], rows: Iterable[TimelineRow], average: Iterable[TimelineRow]
) -> int:
    """Bytes of a round; rows: of one in which no lane rests."""
    if not (every := plan.average_every_rounds):
        return sum(link.bytes for link in links)
    parts = {lane.name: _part(plan, lane) for lane in plan.lanes}
    saved = sum(row.bytes * (1 - parts[row.lane]) for row in rows if row.lane in parts)
    return round(sum(link.bytes for link in links) - saved + sum(row.bytes for row in average) / every)


def _part(plan: Plan, lane: Lane) -> float:
    """Share of the rounds in which a lane takes a step."""
    return lane.rounds / plan.average_every_rounds if lane.rounds and plan.average_every_rounds else 1.0
