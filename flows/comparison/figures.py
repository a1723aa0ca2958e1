"""Figures of a strategy, read from what its run has made."""

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate
from pathlib import Path

from fleetune.checks import untrainable_features
from fleetune.contracts import json_io
from fleetune.contracts.fleet import Fleet
from fleetune.contracts.metrics import Forecast, RoundMetrics, TrainingMetrics
from fleetune.contracts.plan import Plan
from fleetune.errors import Refused
from fleetune.store import RunRecord, Store
from flows.comparison.mean_rounds import average_s, forecast_figures, mean_samples, measured_figures
from flows.comparison.record import PLANNED, TRAINED, ComparedDevice, ComparedStrategy, LossPoint
from flows.past_runs import load_plan, load_results
from flows.provenance import training_method

WINDOW_ROUNDS = 5
"""Rounds over which a loss is averaged: the loss of one batch says little."""
MOST_POINTS = 200
"""Points of a loss curve that a comparison keeps."""


def load_fleet(store: Store, run: RunRecord) -> tuple[ComparedDevice, ...]:
    """The devices of a run's fleet with their memory."""
    fleet = json_io.read(Fleet, _made(store, run, "fleet") / "fleet.json")
    return tuple(ComparedDevice(name=device.name, memory_bytes=device.memory_bytes) for device in fleet.devices)


def planned_row(store: Store, name: str, run: RunRecord) -> ComparedStrategy:
    """The row of a strategy that has a plan. Refused: the run has none, or its artifact is missing or corrupt."""
    found = load_plan(store, run)
    forecast = json_io.read(Forecast, _made(store, run, "plan") / "forecast.json")
    assert found is not None, "_made refuses a run without a plan"
    untrainable = untrainable_features(found.plan)
    return ComparedStrategy(
        name=name,
        state=PLANNED,
        why=f"it cannot be trained yet: its plan has {', '.join(untrainable)}" if untrainable else "",
        run=run.id,
        plan=_what_it_does(found.plan, forecast, training_method(lambda kind: _made(store, run, kind))),
        samples=mean_samples(found.plan),
        forecast=forecast_figures(found.plan, forecast),
        average_every_rounds=found.plan.average_every_rounds,
        untrainable=untrainable,
    )


def _what_it_does(plan: Plan, forecast: Forecast, method: str) -> str:
    """Digest of a plan, whatever the strategy that made it is called, of its forecast, and of how it trains."""
    done = (json_io.text(replace(plan, strategy="")), json_io.text(forecast), method)
    return hashlib.sha256("\n".join(done).encode()).hexdigest()[:32]


def trained_row(store: Store, planned: ComparedStrategy, run: RunRecord) -> ComparedStrategy:
    """The row of a planned strategy once it is trained. Refused: an artifact is missing or corrupt."""
    training = json_io.read(TrainingMetrics, _made(store, run, "metrics") / "training.json")
    forecast = json_io.read(Forecast, _made(store, run, "plan") / "forecast.json")
    found = load_plan(store, run)
    assert found is not None, "_made refuses a run without a plan"
    results = load_results(store, run)
    return replace(
        planned,
        state=TRAINED,
        run=run.id,
        measured=measured_figures(found.plan, training, forecast),
        losses=loss_curve(training, found.plan.average_every_rounds, average_s(training, forecast)),
        score=results.metrics.scores[0] if results and results.metrics.scores else None,
    )


def loss_curve(
    training: TrainingMetrics, average_every_rounds: int = 0, average_s: float = 0.0
) -> tuple[LossPoint, ...]:
    """Mean loss of the last WINDOW_ROUNDS rounds at the end of each round from the first whole window on.

    An average over lanes counts with the round that it follows; every 0 rounds: there is none.
    Rounds that another plan has trained, before an interruption, count with the median of this plan's rounds.
    """
    window = min(WINDOW_ROUNDS, len(training.rounds))
    if not window:
        return ()
    every = average_every_rounds
    averaged = [every and (one.round + 1) % every == 0 for one in training.rounds]
    lasting_s = [
        _round_s(training, one) + average_s * bool(after) for one, after in zip(training.rounds, averaged, strict=True)
    ]
    ends_s = list(accumulate(lasting_s))
    losses = [one.loss for one in training.rounds]
    return tuple(
        LossPoint(seconds=ends_s[end - 1], loss=sum(losses[end - window : end]) / window)
        for end in range(window, len(losses) + 1)
    )


def _round_s(training: TrainingMetrics, one: RoundMetrics) -> float:
    return one.round_s if one.round >= training.plan_from_round else training.median_round_s


def common_loss(curves: Sequence[Sequence[LossPoint]]) -> float | None:
    """The lowest loss that every curve reaches; None without curves."""
    lowest = [min(point.loss for point in curve) for curve in curves if curve]
    return max(lowest, default=None)


def with_target(row: ComparedStrategy, target_loss: float) -> ComparedStrategy:
    """The row with the moment at which its loss first reached the target, and its curve thinned to MOST_POINTS."""
    reached = next((point.seconds for point in row.losses if point.loss <= target_loss), None)
    return replace(row, target_s=reached, losses=thinned(row.losses))


def thinned(points: tuple[LossPoint, ...]) -> tuple[LossPoint, ...]:
    """At most MOST_POINTS points at even distances, with the first and the last."""
    last = len(points) - 1
    if last < MOST_POINTS:
        return points
    return tuple(points[round(k * last / (MOST_POINTS - 1))] for k in range(MOST_POINTS))


def _made(store: Store, run: RunRecord, kind: str) -> Path:
    if kind not in run.outputs:
        raise Refused(f"run {run.id} has made no {kind}")
    return store.folder(kind, run.outputs[kind])
