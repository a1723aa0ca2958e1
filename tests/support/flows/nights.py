"""Runs that a schedule starts each night, and what is decided about them."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from fleetune.contracts import json_io
from fleetune.contracts.metrics import EvaluationMetrics, Score
from fleetune.contracts.run_config import RunConfig
from fleetune.store import PromotionDecision, RunRecord, StageRecord, Store
from flows.promotion import decide

PLAIN: dict[str, Any] = {
    "name": "nightly",
    "model": {"task": "sequence-classification", "config": {"model_type": "bert", "num_hidden_layers": 2}},
    "data": {"source": "docstrings"},
    "training": {"rounds": 1},
    "promote": {"score": "loss"},
}
MOMENT = datetime(2026, 11, 22, 2, tzinfo=UTC)


class Nights:
    """A store, and runs that end in it as told."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.store = Store(folder / "store", clock=lambda: MOMENT)
        self.count = 0

    def put(self, kind: str, **files: str) -> str:
        """Store an artifact."""
        made = self.folder / f"made-{self.count}-{kind}"
        for name, text in files.items():
            path = made / name.replace("__", "/")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return self.store.put(kind, made, stage_key=f"{self.count:064x}", inputs={})

    def run(self, config: RunConfig, before: float, after: float, key: str = "k1", **more: Any) -> RunRecord:
        """The record of an evaluated run of a config with these losses; more: of its evaluation."""
        self.count += 1
        scores = (Score(name="loss", before=before, after=after, better="lower"),)
        metrics = EvaluationMetrics(
            scores=scores, samples=10, forecast_round_s=1.0, measured_round_s=1.0, forecast_error=0.0,
            bytes_per_round=0, peak_memory_bytes=(), **more,
        )  # fmt: skip
        outputs = {
            "checkpoint": self.put("checkpoint", model__weights=f"night {self.count}"),
            "evaluation": self.put("evaluation", **{"evaluation.json": json_io.text(metrics)}),
            "data": self.put("data", rows="rows"),
        }
        stages = (
            StageRecord(stage="prepare", key=key, state="done", outputs={"data": outputs.pop("data")}),
            StageRecord(stage="evaluate", key="e", state="done", outputs=outputs),
        )
        record = RunRecord(
            id=f"nightly-{self.count}", config=config, seed=0, code_version="0", state="done",
            started=MOMENT.isoformat(), stages=stages,
        )  # fmt: skip
        self.store.runs.save(record)
        return record

    def decided(self, record: RunRecord) -> PromotionDecision:
        """The decision about a run."""
        found = decide(self.store, record, lambda seconds: True)
        assert found is not None
        return found


def config(**sections: Any) -> RunConfig:
    """The config of the nightly run, with these sections instead."""
    return json_io.load(RunConfig, {**PLAIN, **sections}, "it")
