"""Runs the pipeline as `fleetune run` does, up to training, and reads what was forecast and what was measured."""

import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import yaml

from benchmarks.parts.fleet.setting import Setting
from fleetune.contracts import wire
from fleetune.contracts.metrics import Forecast, TrainingMetrics
from fleetune.errors import FleetuneError
from fleetune.store import RunRecord, Store
from flows import configs
from flows.context import RunContext, StageSelection
from flows.events import StageEvent
from flows.runner import Runner, run_without_prefect

CONFIGS = Path(__file__).parents[3] / "configs"
EVENTS = "events.jsonl"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    """One run of the list."""

    fleet: str
    strategy: str
    forecast_s: float
    measured_s: tuple[float, ...]
    """Every round."""
    median_s: float
    load: float
    """Of the machine, over the minute before the training started."""
    ready_s: float
    """From the start of the training to the first word of its last worker; workers start all at once."""
    workers: int

    @property
    def error(self) -> float:
        """(forecast - measured) / measured."""
        return (self.forecast_s - self.median_s) / self.median_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed:
    """A run of the list that did not come to its end."""

    fleet: str
    strategy: str
    why: str


def run_all(setting: Setting, image: str, folder: Path, say: Callable[[str], None]) -> list[Ran | Failed]:
    """Every strategy on one fleet: it is found and profiled once, planned and trained on for each."""
    store = Store(folder / "store")
    found: list[Ran | Failed] = []
    for place, strategy in enumerate(setting.strategies):
        say(f"{setting.name}: {strategy}")
        path = folder / "runs" / f"{setting.name}-{strategy}.yaml"
        path.parent.mkdir(parents=True, exist_ok=True)
        if not (folder / "models").exists():
            for kind in ("models", "data"):
                (folder / kind).symlink_to(CONFIGS / kind)
        path.write_text(yaml.safe_dump(setting.config(strategy, image)), encoding="utf-8")
        loads: list[float] = []

        def listen(event: StageEvent, loads: list[float] = loads) -> None:
            if event.stage == "train" and event.kind == "started":
                loads.append(os.getloadavg()[0])

        selection = StageSelection(until="train") if place == 0 else StageSelection(from_stage="plan", until="train")
        runner = Runner(RunContext(store=store, listen=listen), configs.load(path), selection)
        try:
            record = run_without_prefect(runner)
        except FleetuneError as error:
            found.append(Failed(fleet=setting.name, strategy=strategy, why=str(error)))
        else:
            found.append(_read(store, record, (setting.name, strategy), loads[0]))
    return found


def _read(store: Store, record: RunRecord, names: tuple[str, str], load: float) -> Ran:
    metrics = store.folder("metrics", record.outputs["metrics"])
    training = wire.read(TrainingMetrics, metrics / "training.json")
    events = [json.loads(line) for line in (metrics / EVENTS).read_text(encoding="utf-8").splitlines()]
    joined = [event["at_s"] for event in events if event["event"] == "joined"]
    return Ran(
        fleet=names[0],
        strategy=names[1],
        forecast_s=wire.read(Forecast, store.folder("plan", record.outputs["plan"]) / "forecast.json").round_s,
        measured_s=tuple(each.round_s for each in training.rounds),
        median_s=training.median_round_s,
        load=load,
        ready_s=max(joined) - events[0]["at_s"],
        workers=len(joined),
    )
