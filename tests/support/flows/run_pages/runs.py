"""Runs made by hand, with real artifacts in a store."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from fleetune.contracts import json_io
from fleetune.contracts.run_config import RunConfig
from fleetune.drawing import ReportContent
from fleetune.monitoring import EventSummary
from fleetune.monitoring.event_summary import Membership
from fleetune.store import RunRecord, StageRecord, Store
from tests.support.drawing.contents import content

MADE = {
    "discover": ("fleet",),
    "plan": ("plan",),
    "train": ("checkpoint", "metrics"),
    "monitor": ("events",),
    "evaluate": ("evaluation",),
}
PLAIN: dict[str, Any] = {
    "name": "by.hand",
    "fleet": {"devices": [{"name": "a"}, {"name": "b"}, {"name": "c"}]},
    "model": {"task": "causal-lm", "config": {"model_type": "gpt2"}},
    "data": {"source": "digits"},
    "strategy": {"name": "pp"},
    "training": {"rounds": 60},
}
EVENTS = EventSummary(
    memberships=(Membership(device="a", joined_s=0.5, last_beat_s=9.0, longest_silence_s=1.5, ended="done"),),
    rounds_planned=60,
    rounds_committed=60,
    failures=("device b was lost after 3.0 s: <b>pulled</b> | the plug",),
    ended="done",
)


def config(**training: Any) -> RunConfig:
    """The config of the runs."""
    return json_io.load(RunConfig, {**PLAIN, "training": {**PLAIN["training"], **training}}, "by hand")


def kept(
    store: Store, run_id: str, until: str = "evaluate", made: ReportContent | None = None, **fields: Any
) -> RunRecord:
    """A run that has ended with stage `until`, kept in the store with its artifacts."""
    artifacts = artifacts_of(made or content())
    stages = []
    for name, kinds in MADE.items():
        folders = {kind: folder(store, kind, artifacts[kind]) for kind in kinds}
        stages.append(
            StageRecord(
                stage=name,
                state="done",
                how="reused" if name == "discover" else "ran",
                why="reused: same key as by.hand-0" if name == "discover" else "ran: training.rounds changed",
                started="2026-01-02T12:00:00+00:00",
                ended="2026-01-02T12:00:04+00:00",
                outputs={k: store.put(k, place, stage_key="0" * 32, inputs={}) for k, place in folders.items()},
            )
        )
        if name == until:
            break
    given = {"config": config(), "state": "done", "started": "2026-01-02T12:00:00+00:00", **fields}
    run = RunRecord(id=run_id, seed=0, code_version="1", stages=tuple(stages), **given)
    store.runs.save(run)
    return run


def folder(store: Store, kind: str, files: dict[str, str]) -> Path:
    """A folder with these files, which the store may take."""
    made = store.local.parent / "making" / kind
    made.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (made / name).write_text(text)
    return made


def artifacts_of(made: ReportContent) -> dict[str, dict[str, str]]:
    """kind -> name and text of each file, of a run that made `made`."""
    return {
        "fleet": {"fleet.json": json_io.text(made.fleet)},
        "plan": {"plan.json": json_io.text(made.plan), "forecast.json": json_io.text(made.forecast)},
        "metrics": {"training.json": json_io.text(made.training), "forecast.json": json_io.text(made.forecast)},
        "checkpoint": {"round.json": "60"},
        "events": {"events.json": json_io.text(EVENTS)},
        "evaluation": {"evaluation.json": json_io.text(made.evaluation), "report.html": "<p>"},
    }


def failed(run: RunRecord, error: str) -> RunRecord:
    """The same run, failed in its last stage."""
    last = replace(run.stages[-1], state="failed", error=error, outputs={})
    return replace(run, state="failed", error=error, stages=(*run.stages[:-1], last))
