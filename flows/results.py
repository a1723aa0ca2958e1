"""Results of a run, read from its artifacts."""

from pathlib import Path
from typing import Any

from fleetune.contracts import json_io
from fleetune.contracts.metrics import EvaluationMetrics
from fleetune.contracts.plan import PlanResult
from fleetune.contracts.record import record
from fleetune.store import RunRecord, StageRecord, Store
from flows.attempt import LOG


@record
class Results:
    """Scores, report and model of an evaluated run."""

    metrics: EvaluationMetrics
    report: str
    """Path of report.html."""
    model: str
    """Path of the Hugging Face folder or PEFT adapter."""


def load_results(store: Store, run: RunRecord) -> Results | None:
    """Results of a run; None when it was not evaluated. Refused when an artifact is missing or corrupt."""
    evaluation, checkpoint = run.outputs.get("evaluation"), run.outputs.get("checkpoint")
    if evaluation is None or checkpoint is None:
        return None
    folder = store.folder("evaluation", evaluation)
    return Results(
        metrics=json_io.read(EvaluationMetrics, folder / "evaluation.json"),
        report=str(folder / "report.html"),
        model=str(_model(store.folder("checkpoint", checkpoint))),
    )


def load_plan(store: Store, run: RunRecord) -> PlanResult | None:
    """The plan of a run; None when it has none. Refused when its artifact is missing or corrupt."""
    plan = run.outputs.get("plan")
    return None if plan is None else json_io.read(PlanResult, store.folder("plan", plan) / "plan.json")


def plan_report_path(store: Store, run: RunRecord) -> str:
    """Path of the plan's report; empty without a plan, or when an older version made it."""
    plan = run.outputs.get("plan")
    place = None if plan is None else store.folder("plan", plan) / "report.html"
    return str(place) if place is not None and place.is_file() else ""


def _model(checkpoint: Path) -> Path:
    adapter = checkpoint / "adapter"
    return adapter if adapter.is_dir() else checkpoint / "model"


def answer(run: RunRecord, results: Results | None) -> dict[str, Any]:
    """A run and its results as one JSON document; results are null before it is evaluated."""
    return {"run": json_io.dump(run), "results": json_io.dump(results) if results else None}


def stage_document(store: Store, stage: StageRecord) -> dict[str, Any]:
    """A stage and its artifacts as one JSON document; `log` is null once its attempt is finished."""
    made = [_artifact(store, *output) for output in stage.outputs.items()]
    return {"stage": json_io.dump(stage), "artifacts": made, "log": log_path(store, stage)}


def log_path(store: Store, stage: StageRecord) -> str | None:
    """Path of the log of a stage's attempt; None once it is finished."""
    log = store.local / "work" / stage.key / LOG
    return str(log) if stage.key and log.is_file() else None


def _artifact(store: Store, kind: str, digest: str) -> dict[str, Any]:
    manifest = store.manifest(kind, digest)
    files = [{"path": file.path, "bytes": file.bytes} for file in manifest.files]
    return {"kind": kind, "digest": digest, "folder": str(store.folder(kind, digest)), "files": files}
