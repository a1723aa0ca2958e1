"""Differences between two runs: configs, stages and scores."""

import json
from typing import Any

from fleetune.contracts import json_io
from fleetune.contracts.record import record
from fleetune.store import RunRecord, Store, changes
from fleetune.store.stage_key import flatten_config
from flows.results import load_results


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
        settings=_settings(first, second),
        stages=_stages(store, first, second),
        scores=_scores(store, first, second),
    )


def _settings(first: RunRecord, second: RunRecord) -> tuple[SettingDifference, ...]:
    sides = [flatten_config(json_io.dump(run.config), "config") for run in (first, second)]
    names = sorted({*sides[0], *sides[1]})
    differing = [name for name in names if sides[0].get(name) != sides[1].get(name)]
    values = {name: [json.loads(side[name]) if name in side else None for side in sides] for name in differing}
    return tuple(
        SettingDifference(key=name.removeprefix("config."), first=value[0], second=value[1])
        for name, value in values.items()
    )


def _stages(store: Store, first: RunRecord, second: RunRecord) -> tuple[StageDifference, ...]:
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


def _scores(store: Store, first: RunRecord, second: RunRecord) -> tuple[ScoreDifference, ...]:
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
