"""The complete list of runs (fleets, models, strategies), fixed before the first of them starts, and their execution.

A run is the pipeline of `fleetune run`, up to training; its result holds the forecast and the measured rounds.
"""

import json
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from benchmarks import CONFIGS
from benchmarks.without_prefect import run_without_prefect
from fleetune.contracts import json_io
from fleetune.contracts.metrics import Forecast, TrainingMetrics
from fleetune.errors import FleetuneError
from fleetune.store import RunRecord, Store
from flows import configs
from flows.context import RunContext, StageSelection
from flows.runner import Runner
from flows.tracking import StageEvent

STRATEGIES = ("search", "dp", "pp", "single")
"""Strategies by the names in the table; `search` is strategy asteroid with its default method."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetCase:
    """A fleet of containers with the model, data and training that run on it."""

    name: str
    about: str
    cores: tuple[float, ...]
    links: dict[str, Any]
    model: str
    data: str
    batch_samples: int
    micro_batch_samples: int
    rounds: int
    strategies: tuple[str, ...] = STRATEGIES

    @property
    def devices(self) -> tuple[str, ...]:
        """Names of the devices."""
        return tuple(f"{self.name}-{place}" for place in range(len(self.cores)))

    def config(self, strategy: str, image: str) -> dict[str, Any]:
        """The run file of one strategy on this fleet."""
        return {
            "name": f"{self.name}-{strategy}",
            "seed": 1,
            "fleet": {
                "image": image,
                "devices": [
                    {
                        "name": name,
                        "launcher": "docker",
                        "accelerator": "cpu",
                        "emulate": {"cores": cores, "memory_bytes": 2_000_000_000},
                    }
                    for name, cores in zip(self.devices, self.cores, strict=True)
                ],
                "links": self.links,
            },
            "model": self.model,
            "data": self.data,
            "strategy": {"name": "asteroid" if strategy == "search" else strategy},
            "training": {
                "rounds": self.rounds,
                "batch_samples": self.batch_samples,
                "micro_batch_samples": self.micro_batch_samples,
                "learning_rate": 5e-4,
            },
        }


EDGE = FleetCase(
    name="edge",
    about="0.6/0.4/0.3/0.3 cores, 50 and 100 Mbit/s, MiniLM (22 M parameters, all trained)",
    cores=(0.6, 0.4, 0.3, 0.3),
    links={
        "mbit_per_s": 50.0,
        "latency_s": 0.002,
        "pairs": [
            {"source": a, "target": b, "mbit_per_s": 100.0, "latency_s": 0.001}
            for a, b in (("edge-0", "edge-1"), ("edge-1", "edge-0"))
        ],
    },
    model="minilm",
    data="docstrings",
    batch_samples=32,
    micro_batch_samples=8,
    rounds=8,
)
TOWNS = FleetCase(
    name="towns",
    about="0.6/0.5/0.4 cores in three towns, 20 Mbit/s and 20 ms, MiniLM with LoRA",
    cores=(0.6, 0.5, 0.4),
    links={"mbit_per_s": 20.0, "latency_s": 0.02},
    model="minilm-lora",
    data="docstrings",
    batch_samples=32,
    micro_batch_samples=8,
    rounds=8,
)
HOME = FleetCase(
    name="home",
    about="0.9/0.5 cores, 200 Mbit/s, a vision transformer of 0.3 M parameters",
    cores=(0.9, 0.5),
    links={"mbit_per_s": 200.0, "latency_s": 0.0005},
    model="vit-tiny",
    data="digits",
    batch_samples=256,
    micro_batch_samples=64,
    rounds=20,
)
QUICK = replace(HOME, name="quick", rounds=10, strategies=("search", "single"))
ALL = (EDGE, TOWNS, HOME)


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
