"""The artifacts of a run that was trained."""

import sys
from dataclasses import replace
from pathlib import Path

from fleetune.contracts import json_io
from fleetune.contracts.metrics import EvaluationMetrics, TrainingMetrics
from fleetune.contracts.record import record
from fleetune.errors import Refused
from fleetune.formatting import visible
from fleetune.store import RunRecord, Store
from flows.promoted_start import in_this_store
from flows.receipt import Receipt, read_receipt


@record
class TrainedRun:
    """A past run with the folders of its artifacts."""

    run: RunRecord
    checkpoint: Path
    model: Path
    """Of the `model` artifact, from which training started."""
    data: Path
    scores: EvaluationMetrics | None
    """None if it was not evaluated."""
    training: TrainingMetrics | None = None
    """None if nothing is recorded."""
    receipt: Receipt | None = None
    """None if the run has none."""


def tell(sentence: str) -> None:
    """Tell a note beside what a command prints, or a cell shows."""
    sys.stderr.write(f"note: {visible(sentence)}\n")


def trained_run(store: Store, name: str) -> TrainedRun:
    """Find a run by its name, as `fleetune show` does. Refused: it was not trained."""
    run = store.runs.load(name, trained=True)
    lacking = [kind for kind in ("checkpoint", "model", "data") if kind not in run.outputs]
    if lacking:
        raise Refused(
            f"run {run.id} has no {lacking[0]}: it is {run.state}; name a run that was trained (fleetune runs --state "
            "done), or go on with this one: fleetune rerun"
        )
    scores, metrics = run.outputs.get("evaluation"), run.outputs.get("metrics")
    return TrainedRun(
        run=replace(run, config=in_this_store(store, run.config)),
        **{kind: store.folder(kind, run.outputs[kind]) for kind in ("checkpoint", "model", "data")},
        receipt=read_receipt(store, run.id),
        scores=None
        if scores is None
        else json_io.read(EvaluationMetrics, store.folder("evaluation", scores) / "evaluation.json"),
        training=None
        if metrics is None
        else json_io.read(TrainingMetrics, store.folder("metrics", metrics) / "training.json"),
    )
