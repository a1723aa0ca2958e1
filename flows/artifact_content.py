"""The contents of a run's artifacts as records: its plan, fleet, profile, metrics and events."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fleetune.contracts import json_io
from fleetune.contracts.fleet import Fleet
from fleetune.contracts.metrics import EvaluationMetrics, Forecast, TrainingMetrics
from fleetune.contracts.plan import PlanResult
from fleetune.contracts.profile import Profile
from fleetune.contracts.record import record
from fleetune.errors import Refused
from fleetune.monitoring.event_log import Event
from fleetune.monitoring.event_summary import EventAggregator, EventSummary
from fleetune.store import RunRecord, StageRecord, Store

PLAN, FLEET, PROFILE, METRICS, EVENTS = "plan", "fleet", "profile", "metrics", "events"
EVENT_LOG = "events.jsonl"


@record
class PlanContent:
    """A plan and its forecast; `forecast` is None in a plan of an older version."""

    plan: PlanResult
    forecast: Forecast | None


@record
class MetricsContent:
    """What a training measured, what was forecast, and the scores; None where a run has not come so far."""

    training: TrainingMetrics
    forecast: Forecast | None
    evaluation: EvaluationMetrics | None


@record
class EventsContent:
    """The event log of a training, and what it comes to."""

    summary: EventSummary
    log: tuple[Event, ...]
    finished: bool
    """False while the training is not in the store: it runs, or has failed."""


Content = PlanContent | Fleet | Profile | MetricsContent | EventsContent


def read_content(store: Store, run: RunRecord, kind: str) -> Content:
    """The content of the artifact of one kind. Refused: a run without it, or a missing or damaged file."""
    if kind == EVENTS:
        return _events(store, run)
    folder = artifact_folder(store, run, kind)
    if kind == PLAN:
        forecast = _optional(Forecast, folder / "forecast.json")
        return PlanContent(plan=json_io.read(PlanResult, folder / "plan.json"), forecast=forecast)
    if kind == FLEET:
        return json_io.read(Fleet, folder / "fleet.json")
    if kind == PROFILE:
        return json_io.read(Profile, folder / "profile.json")
    evaluated = run.outputs.get("evaluation")
    return MetricsContent(
        training=json_io.read(TrainingMetrics, folder / "training.json"),
        forecast=_optional(Forecast, folder / "forecast.json"),
        evaluation=json_io.read(EvaluationMetrics, store.folder("evaluation", evaluated) / "evaluation.json")
        if evaluated
        else None,
    )


def artifact_folder(store: Store, run: RunRecord, kind: str) -> Path:
    """The folder of a run's artifact. Refused: a run that has not made it; the error says how far the run has come."""
    digest = run.outputs.get(kind)
    if digest is None:
        stages = ", ".join(f"{stage.stage} {stage.state}" for stage in run.stages)
        raise Refused(f"run {run.id}: it has no {kind}; its stages are: {stages}")
    return store.folder(kind, digest)


def producer(run: RunRecord, kind: str) -> StageRecord | None:
    """The stage that made an artifact of this kind; None if the run has none."""
    return next((stage for stage in run.stages if kind in stage.outputs), None)


def _optional(kind: type[Any], path: Path) -> Any:
    return json_io.read(kind, path) if path.is_file() else None


def _events(store: Store, run: RunRecord) -> EventsContent:
    """The log of the run's training: stored, or in the work folder of one that has not ended well."""
    finished = METRICS in run.outputs
    place = (artifact_folder(store, run, METRICS) if finished else _work(store, run)) / EVENT_LOG
    log, unreadable = [], 0
    for line in _lines(place):
        try:
            log.append(json_io.parse(Event, line, str(place)))
        except Refused:
            unreadable += 1
    aggregator = EventAggregator()
    aggregator.add(log)
    aggregator.unreadable_lines = unreadable
    return EventsContent(summary=aggregator.summary(), log=tuple(log), finished=finished)


def _work(store: Store, run: RunRecord) -> Path:
    """The work folder of the stage that writes an event log."""
    for stage in run.stages:
        place = store.local / "work" / stage.key
        if stage.key and (place / EVENT_LOG).is_file():
            return place
    return artifact_folder(store, run, METRICS)  # refused, with the stages


def _lines(place: Path) -> Iterator[bytes]:
    try:
        content = place.read_bytes()
    except OSError as error:
        raise Refused(f"{place}: cannot be read ({error.strerror})") from None
    return (line for line in content.split(b"\n") if line.strip())
