"""A plan of two segments on two processes: how busy its devices are, beside what the clock says of the same plan."""

import statistics
import time
from dataclasses import dataclass

from benchmarks.parts.bench_model import Measured
from benchmarks.report import Figure, middle
from fleetune.clock import forecast
from fleetune.contracts.metrics import Forecast, TrainingMetrics
from fleetune.contracts.plan import BACKWARD, FORWARD, PlanResult, parse_action

WARM_UP = 2


@dataclass(frozen=True)
class Trained:
    """One training of the plan."""

    busy_share: float
    round_s: float
    between_s: float
    """From the end of a round's work to the start of the next: commit and optimizer step."""


def two_segments(measured: Measured, rounds: int, repeats: int, suffix: str = "") -> list[Figure]:
    """Train the plan `repeats` times; `suffix` tells figures of other devices apart."""
    plan = measured.plan("pp", order="given")
    said = forecast(plan.plan, measured.fleet, measured.profile)
    trained = [_train(measured, plan, rounds, f"two-segments{suffix}-{n}") for n in range(repeats)]
    possible = _busy_share(said)
    what = f"{len(trained)} trainings of {rounds} rounds"
    return [
        Figure(
            name=f"two_segments_busy{suffix}",
            unit="x clock",
            target=0.9,
            better="higher",
            about=f"busy share of two devices, {what}; the clock says {possible:.3f}",
            **middle([t.busy_share / possible for t in trained]),
        ),
        Figure(
            name=f"two_segments_round{suffix}",
            unit="x clock",
            better="lower",
            about=f"seconds of a round beside the forecast {said.round_s:.3f} s",
            **middle([t.round_s / said.round_s for t in trained]),
        ),
        Figure(
            name=f"two_segments_between_rounds{suffix}",
            unit="s",
            better="lower",
            about="commit and optimizer step, which the clock does not count",
            **middle([t.between_s for t in trained]),
        ),
    ]


def _train(measured: Measured, plan: PlanResult, rounds: int, name: str) -> Trained:
    ends: list[float] = []
    metrics = measured.train(plan, rounds + WARM_UP, name, progress=lambda *_: ends.append(time.perf_counter()))
    counted = metrics.rounds[WARM_UP:-1]  # the last waits for a checkpoint
    return Trained(
        busy_share=_busy_share(metrics),
        round_s=statistics.median(r.round_s for r in counted),
        between_s=statistics.median(ends[r.round] - ends[r.round - 1] - r.round_s for r in counted),
    )


def _busy_share(timed: Forecast | TrainingMetrics) -> float:
    """Seconds of forwards and backwards per device over the seconds of the round, of a forecast or a measured round."""
    rows = timed.rows if isinstance(timed, Forecast) else timed.timeline
    work = [row for row in rows if not row.is_transfer and parse_action(row.action).letter in (FORWARD, BACKWARD)]
    devices = {row.device for row in work}
    whole_s = max(row.end_s for row in rows)
    return sum(row.end_s - row.start_s for row in work) / (len(devices) * whole_s)
