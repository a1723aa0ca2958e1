"""Past runs: lists of them, their results, and the differences between two."""

import json
from fnmatch import fnmatchcase
from itertools import islice
from typing import Any

from fleetune.contracts import json_io
from fleetune.contracts.metrics import EvaluationMetrics
from fleetune.contracts.plan import PlanResult
from fleetune.contracts.record import one_of, record
from fleetune.store import RunRecord, StageRecord, Store, changes
from fleetune.store.runs import RUN_STATES
from fleetune.store.stage_key import flatten_config
from flows.attempt import LOG
from flows.promoted_start import model_folder


@record
class Results:
    """Scores, report and model of an evaluated run."""

    metrics: EvaluationMetrics
    report: str
    """Path of report.html."""
    model: str
    """Path of the Hugging Face folder or PEFT adapter."""


@record
class RunList:
    """Runs that were asked for."""

    runs: tuple[RunRecord, ...]
    """Newest first."""
    more: int
    """Number of further runs that were asked for and are beyond the limit."""


def list_runs(store: Store, *, name: str = "", states: tuple[str, ...] = (), limit: int = 0) -> RunList:
    """The newest runs whose config is called `name` (a shell pattern) and that are in one of `states`; empty: any.

    `limit` is the largest number, 0 for all. Refused: an unknown state.
    """
    for state in states:
        one_of("runs", "--state", state, RUN_STATES)
    found = (
        run
        for run in store.runs.newest_first()
        if (not name or fnmatchcase(run.config.name, name)) and (not states or run.state in states)
    )
    listed = tuple(islice(found, limit or None))
    if not name and not states and limit:  # the rest is counted without parsing it
        return RunList(runs=listed, more=max(0, store.runs.count() - len(listed)))
    return RunList(runs=listed, more=sum(1 for _ in found))


def load_results(store: Store, run: RunRecord) -> Results | None:
    """Results of a run; None when it was not evaluated. Refused when an artifact is missing or corrupt."""
    evaluation, checkpoint = run.outputs.get("evaluation"), run.outputs.get("checkpoint")
    if evaluation is not None and checkpoint is None:  # it evaluated the checkpoint of an earlier run again
        checkpoint = run.stage("evaluate").inputs.get("checkpoint")
    if evaluation is None or checkpoint is None:
        return None
    folder = store.folder("evaluation", evaluation)
    return Results(
        metrics=json_io.read(EvaluationMetrics, folder / "evaluation.json"),
        report=str(folder / "report.html"),
        model=str(model_folder(store.place("checkpoint", checkpoint))),
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


def run_document(run: RunRecord, results: Results | None) -> dict[str, Any]:
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
    return {"kind": kind, "digest": digest, "folder": str(store.place(kind, digest)), "files": files}


@record
class SettingDifference:
    """A setting that differs; None when a run does not have it."""

    key: str
    first: Any
    second: Any


@record
class StageDifference:
    """One stage of two runs, compared by its outputs."""

    stage: str
    same: bool
    """Its outputs are equal byte for byte."""
    why: str


@record
class ScoreDifference:
    """A number of both runs; None when a run was not evaluated."""

    name: str
    first: float | None
    second: float | None


@record
class RunDifference:
    """Every difference, and the stages that are equal."""

    first: str
    second: str
    settings: tuple[SettingDifference, ...]
    stages: tuple[StageDifference, ...]
    scores: tuple[ScoreDifference, ...]


def diff_runs(store: Store, first: RunRecord, second: RunRecord) -> RunDifference:
    """The difference between two runs of one store."""
    return RunDifference(
        first=first.id,
        second=second.id,
        settings=setting_differences(first, second),
        stages=_stage_differences(store, first, second),
        scores=_score_differences(store, first, second),
    )


def setting_differences(first: RunRecord, second: RunRecord) -> tuple[SettingDifference, ...]:
    """The settings of two runs that differ, by name."""
    sides = [flatten_config(json_io.dump(run.config), "config") for run in (first, second)]
    names = sorted({*sides[0], *sides[1]})
    differing = [name for name in names if sides[0].get(name) != sides[1].get(name)]
    values = {name: [json.loads(side[name]) if name in side else None for side in sides] for name in differing}
    return tuple(
        SettingDifference(key=name.removeprefix("config."), first=value[0], second=value[1])
        for name, value in values.items()
    )


def _stage_differences(store: Store, first: RunRecord, second: RunRecord) -> tuple[StageDifference, ...]:
    sides = [{stage.stage: stage for stage in run.stages} for run in (first, second)]
    found = []
    for name in dict.fromkeys([*sides[0], *sides[1]]):
        mine, other = (side.get(name) for side in sides)
        if mine is None or other is None:
            lacks = first.id if mine is None else second.id
            found.append(StageDifference(stage=name, same=False, why=f"{lacks} has no such stage"))
            continue
        if not (mine.outputs and other.outputs):
            found.append(StageDifference(stage=name, same=False, why="not finished in both runs"))
            continue
        same = mine.outputs == other.outputs
        why = _why(store, mine.key, other.key)
        found.append(StageDifference(stage=name, same=same, why="" if same else why or "run anew"))
    return tuple(found)


def _why(store: Store, first: str, second: str) -> str:
    """Sentence on the ingredients that differ between two stage keys."""
    made = [store.key(key) for key in (first, second)]
    return changes(made[0].ingredients, made[1].ingredients) if made[0] and made[1] else "keys are gone from the store"


def _score_differences(store: Store, first: RunRecord, second: RunRecord) -> tuple[ScoreDifference, ...]:
    sides: list[dict[str, float]] = []
    for run in (first, second):
        results = load_results(store, run)
        metrics = results.metrics if results else None
        numbers = {f"{score.name} after": score.after for score in metrics.scores} if metrics else {}
        if metrics:
            numbers |= {"round_s": metrics.measured_round_s, "bytes_per_round": float(metrics.bytes_per_round)}
        sides.append(numbers)
    names = list(dict.fromkeys([*sides[0], *sides[1]]))
    return tuple(ScoreDifference(name=name, first=sides[0].get(name), second=sides[1].get(name)) for name in names)
