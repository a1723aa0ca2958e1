"""A complete run to draw: a real plan, with measurements slightly off the forecast."""

from dataclasses import replace
from typing import Any

from fleetune.clock import forecast
from fleetune.contracts.fleet import Fleet
from fleetune.contracts.metrics import (
    DeviceAmount,
    EvaluationMetrics,
    LinkBytes,
    RoundMetrics,
    Score,
    TimelineRow,
    TrainingMetrics,
)
from fleetune.contracts.plan import PlanResult
from fleetune.contracts.profile import Profile
from fleetune.drawing import ReportContent
from fleetune.planning import solve
from tests.support.drawing import hand_made
from tests.support.planning.instances import small


def row(device: str, action: str, start_s: float, end_s: float) -> TimelineRow:
    """A timeline row of the lane that the action names."""
    return TimelineRow(device=device, lane=action.partition("/")[0], action=action, start_s=start_s, end_s=end_s)


def content() -> ReportContent:
    """A run of strategy pp on a, then b and c together."""
    problem = small(micro_batch_samples=4, micro_batches=6, groups=[["a"], ["b", "c"]])
    return content_of(solve("pp", problem, now=lambda: 0.0), problem.fleet, problem.profile)


def by_hand(name: str, **changes: Any) -> ReportContent:
    """A run of one of the hand-made plans, changed."""
    plan = replace(hand_made.PLANS[name], **changes)
    said = forecast(plan, hand_made.FLEET, hand_made.PROFILE)
    result = PlanResult(
        plan=plan, objective=said.round_s, lower_bound=None, status="feasible", solve_s=0.0, method="by hand"
    )
    return content_of(result, hand_made.FLEET, hand_made.PROFILE)


def content_of(result: PlanResult, fleet: Fleet, profile: Profile) -> ReportContent:
    """A run of a plan."""
    said = forecast(result.plan, fleet, profile)
    rounds = tuple(
        RoundMetrics(
            round=k, loss=0.7 / (1 + k / 10) + 0.02 * (k % 3), gradient_norm=1.0, learning_rate=5e-4, round_s=0.2
        )
        for k in range(60)
    )
    training = TrainingMetrics(
        rounds=rounds,
        timeline=tuple(_slower(row) for row in said.rows),
        peak_memory_bytes=tuple(DeviceAmount(device=m.device, amount=m.amount * 1.1) for m in said.memory_bytes),
        busy_s=said.busy_s,
        link_bytes=tuple(LinkBytes(source=x.source, target=x.target, bytes=x.bytes + 300) for x in said.link_bytes),
        median_round_s=said.round_s * 1.08,
        wall_s=14.2,
    )
    evaluation = EvaluationMetrics(
        scores=(
            Score(name="accuracy", before=0.1, after=0.86, better="higher"),
            Score(name="loss", before=2.31, after=0.41, better="lower"),
        ),
        samples=400,
        forecast_round_s=said.round_s,
        measured_round_s=said.round_s * 1.08,
        forecast_error=1 / 1.08 - 1,
        bytes_per_round=sum(x.bytes for x in said.link_bytes),
        peak_memory_bytes=training.peak_memory_bytes,
    )
    return ReportContent(
        title="demo: a small model <on> three devices",
        fleet=fleet,
        profile=profile,
        plan=result,
        forecast=said,
        training=training,
        evaluation=evaluation,
        facts={"seed": "0", "plan digest": "sha256:" + "4f" * 32},
    )


def _slower(row: TimelineRow) -> TimelineRow:
    return replace(row, start_s=row.start_s * 1.08, end_s=row.end_s * 1.08)
