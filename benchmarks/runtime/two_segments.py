"""A plan of two segments on two processes: busy share of its devices beside the forecast of the same plan."""

import statistics
import time
from dataclasses import dataclass

from benchmarks.report import Figure, median_and_spread
from benchmarks.runtime.workload import Workload
from fleetune.clock import forecast
from fleetune.contracts.metrics import Forecast, TrainingMetrics
from fleetune.contracts.plan import BACKWARD, FORWARD, PlanResult, parse_action

WARM_UP = 2


@dataclass(frozen=True)
class Trained:
    """Measurements of one training."""

    busy_share: float
    round_s: float
    between_s: float
    """Seconds between two rounds: commit and optimizer step."""


def two_segments(workload: Workload, rounds: int, repeats: int, suffix: str = "") -> list[Figure]:
    """Train the plan `repeats` times; `suffix` distinguishes figures of other devices."""
    plan = workload.plan("pp", order="given")
    predicted = forecast(plan.plan, workload.fleet, workload.profile)
    trained = [_train(workload, plan, rounds, f"two-segments{suffix}-{n}") for n in range(repeats)]
    possible = _busy_share(predicted)
    what = f"{len(trained)} trainings of {rounds} rounds"
    return [
        Figure(
            name=f"two_segments_busy{suffix}",
            unit="x clock",
            target=0.9,
            better="higher",
            about=f"busy share of two devices, {what}; the forecast says {possible:.3f}",
            **median_and_spread([t.busy_share / possible for t in trained]),
        ),
        Figure(
            name=f"two_segments_round{suffix}",
            unit="x clock",
            better="lower",
            about=f"seconds of a round beside the forecast {predicted.round_s:.3f} s",
            **median_and_spread([t.round_s / predicted.round_s for t in trained]),
        ),
        Figure(
            name=f"two_segments_between_rounds{suffix}",
            unit="s",
            better="lower",
            about="commit and optimizer step, which the forecast leaves out",
            **median_and_spread([t.between_s for t in trained]),
        ),
    ]


def _train(workload: Workload, plan: PlanResult, rounds: int, name: str) -> Trained:
    ends: list[float] = []
    metrics = workload.train(plan, rounds + WARM_UP, name, progress=lambda *_: ends.append(time.perf_counter()))
    counted = metrics.rounds[WARM_UP:-1]  # the last round includes a checkpoint
    return Trained(
        busy_share=_busy_share(metrics),
        round_s=statistics.median(r.round_s for r in counted),
        between_s=statistics.median(ends[r.round] - ends[r.round - 1] - r.round_s for r in counted),
    )


def _busy_share(timed: Forecast | TrainingMetrics) -> float:
    """Mean over devices of compute seconds (forwards and backwards) over the duration of the round."""
    rows = timed.rows if isinstance(timed, Forecast) else timed.timeline
    work = [row for row in rows if not row.is_transfer and parse_action(row.action).letter in (FORWARD, BACKWARD)]
    devices = {row.device for row in work}
    whole_s = max(row.end_s for row in rows)
    return sum(row.end_s - row.start_s for row in work) / (len(devices) * whole_s)
