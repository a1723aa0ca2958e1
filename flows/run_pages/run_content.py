"""What a run has made so far, read from its artifacts for the pages about it."""

from pathlib import Path
from typing import TypeVar

from fleetune.contracts import json_io
from fleetune.contracts.fleet import Fleet
from fleetune.contracts.metrics import EvaluationMetrics, Forecast, RoundMetrics, Score, TrainingMetrics
from fleetune.contracts.plan import PlanResult
from fleetune.contracts.profile import Profile
from fleetune.contracts.record import record
from fleetune.errors import FleetuneError
from fleetune.formatting import number
from fleetune.monitoring import EventSummary
from fleetune.store import PromotionDecision, RunRecord, Store
from stages.catalog import TRAIN

COMMITS = "commits.jsonl"
"""The commit log in the work folder of `train`, a line for each round."""

T = TypeVar("T")


@record
class RunContent:
    """The results of a run's stages; None for those that have none yet, or whose artifact cannot be read."""

    fleet: Fleet | None
    profile: Profile | None
    plan: PlanResult | None
    forecast: Forecast | None
    """That of the training if there is one, which may have been forecast on an earlier measurement; else the plan's."""
    training: TrainingMetrics | None
    events: EventSummary | None
    evaluation: EvaluationMetrics | None
    so_far: tuple[RoundMetrics, ...] = ()
    """Rounds that a training has committed which has no metrics yet, because it runs or was interrupted."""

    @property
    def rounds(self) -> tuple[RoundMetrics, ...]:
        """The rounds of the training, as far as it has come."""
        return self.training.rounds if self.training is not None else self.so_far

    @property
    def forecast_round_s(self) -> float | None:
        """Seconds that a round was forecast to take; None before there is a plan."""
        if self.forecast is not None:
            return self.forecast.round_s
        return None if self.plan is None else self.plan.objective

    @property
    def score(self) -> Score | None:
        """The first score of the evaluation, the task's own."""
        return self.evaluation.scores[0] if self.evaluation and self.evaluation.scores else None

    @property
    def headline(self) -> str:
        """The result in a line: `accuracy 0.742 (+0.63), 0.86 s a round`; a forecast before training."""
        parts = [f"{self.score.name} {_three(self.score.after)} ({gain(self.score)})"] if self.score else []
        if self.training is not None and self.training.rounds:
            parts.append(f"{round_seconds(self.training.median_round_s)} a round")
        elif self.forecast_round_s is not None:
            parts.append(f"forecast {round_seconds(self.forecast_round_s)} a round")
        return ", ".join(parts)


def content_of(store: Store, run: RunRecord) -> RunContent:
    """The results of a run as far as it has come."""
    return RunContent(
        fleet=_read(store, run, Fleet, "fleet", "fleet.json"),
        profile=_read(store, run, Profile, "profile", "profile.json"),
        plan=_read(store, run, PlanResult, "plan", "plan.json"),
        forecast=_read(store, run, Forecast, "metrics", "forecast.json")
        or _read(store, run, Forecast, "plan", "forecast.json"),
        training=_read(store, run, TrainingMetrics, "metrics", "training.json"),
        events=_read(store, run, EventSummary, "events", "events.json"),
        evaluation=_read(store, run, EvaluationMetrics, "evaluation", "evaluation.json"),
        so_far=_committed(store, run),
    )


def result_of(store: Store, run: RunRecord) -> RunContent:
    """The plan, training and evaluation of a run: what its headline needs."""
    return RunContent(
        fleet=None,
        profile=None,
        plan=_read(store, run, PlanResult, "plan", "plan.json"),
        forecast=None,
        training=_read(store, run, TrainingMetrics, "metrics", "training.json"),
        events=None,
        evaluation=_read(store, run, EvaluationMetrics, "evaluation", "evaluation.json"),
    )


def decisions(store: Store, name: str) -> dict[str, PromotionDecision]:
    """Run -> what was decided about its model, for the runs of a config; empty when that cannot be read."""
    try:
        return {decided.run: decided for decided in store.promotions.history(name)}
    except (FleetuneError, OSError):
        return {}


def gain(score: Score) -> str:
    """The difference that training made: `+0.63`."""
    difference = score.after - score.before
    return f"{difference:+.2f}" if abs(difference) >= 0.01 or difference == 0 else f"{difference:+.2g}"


def round_seconds(value: float) -> str:
    """Seconds of a round with two decimals at least: `0.86 s`, `12.40 s`, `0.0031 s`."""
    return f"{value:.2f} s" if value >= 0.095 else f"{value:.2g} s"


def _committed(store: Store, run: RunRecord) -> tuple[RoundMetrics, ...]:
    """The rounds in the commit log of an unfinished training; its last line may be half written."""
    key = next((stage.key for stage in run.stages if stage.stage == TRAIN.name and stage.state != "done"), "")
    if not key:
        return ()
    try:
        lines = (store.local / "work" / key / COMMITS).read_bytes().split(b"\n")[:-1]
        return tuple(json_io.parse(RoundMetrics, line, COMMITS) for line in lines)
    except (FleetuneError, OSError):
        return ()


def _three(value: float) -> str:
    return f"{value:.3f}" if 0.001 <= abs(value) < 100 else number(value)


def _read(store: Store, run: RunRecord, kind: type[T], artifact: str, file: str) -> T | None:
    digest = run.outputs.get(artifact)
    if digest is None:
        return None
    try:
        return json_io.read(kind, Path(store.folder(artifact, digest)) / file)
    except (FleetuneError, OSError):
        return None
