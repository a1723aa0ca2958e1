"""Finished runs in a store, none of which was trained."""

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

from fleetune.contracts import json_io
from fleetune.contracts.metrics import DeviceAmount, EvaluationMetrics, Score
from fleetune.contracts.run_config import RunConfig
from fleetune.store import KeyRecord, RunRecord, StageRecord, Store, stage_key

NOON = datetime(2026, 1, 2, 12, tzinfo=UTC)
CONFIG = {
    "name": "small",
    "fleet": {"devices": [{"name": "fast"}, {"name": "slow"}]},
    "model": {"task": "causal-lm", "config": {"model_type": "gpt2"}},
    "data": {"source": "stdlib-sources"},
    "strategy": {"name": "dp"},
    "training": {"rounds": 3},
}


def metrics(after: float) -> EvaluationMetrics:
    """Evaluation metrics of a run that ended with the loss `after`."""
    return EvaluationMetrics(
        scores=(Score(name="loss", before=6.25, after=after, better="lower"),),
        samples=200,
        forecast_round_s=1.1,
        measured_round_s=1.0,
        forecast_error=0.1,
        bytes_per_round=123_400_000,
        forecast_bytes_per_round=120_000_000,
        peak_memory_bytes=(DeviceAmount(device="fast", amount=4.5e8), DeviceAmount(device="slow", amount=4.2e8)),
        forecast_memory_bytes=(DeviceAmount(device="fast", amount=4.95e8),),
    )


def add_run(root: Path, number: int, rounds: int = 3, after: float = 5.5) -> RunRecord:
    """Put a finished run of two stages into the store: `train` made a checkpoint, `evaluate` an evaluation."""
    store = Store(root, clock=lambda: NOON)
    config = json_io.load(RunConfig, CONFIG | {"training": {"rounds": rounds}}, "small")
    contents = {"checkpoint": ("model/config.json", "{}"), "evaluation": ("report.html", "<html></html>")}
    stages = []
    for stage, kind in (("train", "checkpoint"), ("evaluate", "evaluation")):
        folder = root.parent / f"making-{kind}"
        name, text = contents[kind]
        (folder / name).parent.mkdir(parents=True)
        (folder / name).write_text(text if kind == "evaluation" else json.dumps({"rounds": rounds}))
        if kind == "evaluation":
            json_io.write(metrics(after), folder / "evaluation.json")
        ingredients = {"stage": stage, "config.training.rounds": str(rounds)}
        key = stage_key(ingredients)
        outputs = {kind: store.put(kind, folder, stage_key=key, inputs={})}
        store.keep_key(key, KeyRecord(stage=stage, run=f"small-{number}", outputs=outputs, ingredients=ingredients))
        stages.append(
            StageRecord(stage=stage, key=key, state="done", outputs=outputs, how="ran", why="ran: never run before")
        )
    record = RunRecord(
        id=f"small-{number}",
        config=config,
        seed=0,
        code_version="0.1.0",
        state="done",
        started=(NOON + timedelta(hours=number)).isoformat(),
        ended=(NOON + timedelta(hours=number, seconds=7)).isoformat(),
        stages=tuple(stages),
    )
    store.runs.save(record)
    return record
