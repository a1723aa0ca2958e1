"""Runs the pipeline as `fleetune run` does, up to training, and reads forecast and measured rounds."""

import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import yaml

from benchmarks import CONFIGS
from benchmarks.fleet.fleets import FleetCase
from fleetune.contracts import json_io
from fleetune.contracts.metrics import Forecast, TrainingMetrics
from fleetune.errors import FleetuneError
from fleetune.store import RunRecord, Store
from flows import configs
from flows.context import RunContext, StageSelection
from flows.events import StageEvent
from flows.runner import Runner, run_without_prefect

EVENTS = "events.jsonl"


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletedRun:
    """A run that reached the end of its training."""

    fleet: str
    strategy: str
    forecast_s: float
    measured_s: tuple[float, ...]
    """Duration of every round."""
    median_s: float
    load: float
    """Load average of the machine over the minute before the training started."""
    ready_s: float
    """Seconds from the start of the training to the first message of its last worker; workers start concurrently."""
    workers: int

    @property
    def error(self) -> float:
        """Forecast error relative to the measured median round."""
        return (self.forecast_s - self.median_s) / self.median_s


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedRun:
    """A run that ended with an error."""

    fleet: str
    strategy: str
    why: str


def run_all(
    case: FleetCase, image: str, folder: Path, report_progress: Callable[[str], None]
) -> list[CompletedRun | FailedRun]:
    """Runs every strategy of a case; the fleet is discovered and profiled once."""
    store = Store(folder / "store")
    results: list[CompletedRun | FailedRun] = []
    for place, strategy in enumerate(case.strategies):
        report_progress(f"{case.name}: {strategy}")
        path = folder / "runs" / f"{case.name}-{strategy}.yaml"
        path.parent.mkdir(parents=True, exist_ok=True)
        if not (folder / "models").exists():
            for kind in ("models", "data"):
                (folder / kind).symlink_to(CONFIGS / kind)
        path.write_text(yaml.safe_dump(case.config(strategy, image)), encoding="utf-8")
        loads: list[float] = []

        def listen(event: StageEvent, loads: list[float] = loads) -> None:
            if event.stage == "train" and event.kind == "started":
                loads.append(os.getloadavg()[0])

        selection = StageSelection(until="train") if place == 0 else StageSelection(from_stage="plan", until="train")
        runner = Runner(RunContext(store=store, listen=listen), configs.load(path), selection)
        try:
            record = run_without_prefect(runner)
        except FleetuneError as error:
            results.append(FailedRun(fleet=case.name, strategy=strategy, why=str(error)))
        else:
            results.append(_read(store, record, (case.name, strategy), loads[0]))
    return results


def _read(store: Store, record: RunRecord, names: tuple[str, str], load: float) -> CompletedRun:
    metrics = store.folder("metrics", record.outputs["metrics"])
    training = json_io.read(TrainingMetrics, metrics / "training.json")
    events = [json.loads(line) for line in (metrics / EVENTS).read_text(encoding="utf-8").splitlines()]
    joined = [event["at_s"] for event in events if event["event"] == "joined"]
    return CompletedRun(
        fleet=names[0],
        strategy=names[1],
        forecast_s=json_io.read(Forecast, store.folder("plan", record.outputs["plan"]) / "forecast.json").round_s,
        measured_s=tuple(each.round_s for each in training.rounds),
        median_s=training.median_round_s,
        load=load,
        ready_s=max(joined) - events[0]["at_s"],
        workers=len(joined),
    )
