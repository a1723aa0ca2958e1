"""Run files for small pipelines on containers, and the pipeline itself in this process."""

import dataclasses
from pathlib import Path
from typing import Any

import yaml

from fleetune.contracts import json_io
from fleetune.contracts.fleet import Fleet
from fleetune.store import RunRecord, Store
from flows import configs
from flows.context import RunContext, StageSelection
from flows.runner import Runner
from flows.tracking import StageEvent
from flows.without_prefect import run_without_prefect

MODEL = {
    "task": "image-classification",
    "config": {
        "model_type": "vit", "image_size": 16, "patch_size": 8, "num_channels": 1, "hidden_size": 32,
        "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64,
    },
}  # fmt: skip
PROCESSES = {"launcher": "process"}
"""Stages that need no containers of their own, for tests of devices."""
LINKS = {"mbit_per_s": 50.0, "latency_s": 0.005}


def config(folder: Path, count: int = 2, **changes: Any) -> Path:
    """So many containers of one engine with shaped links between them, and a tiny model."""
    devices = [
        {
            "name": name,
            "launcher": "docker",
            "accelerator": "cpu",
            "emulate": {"cores": cores, "memory_bytes": 1_000_000_000},
        }
        for name, cores in (("desk", 0.6), ("nano", 0.4), ("shed", 0.3))[:count]
    ]
    plain: dict[str, Any] = {
        "name": "small",
        "seed": 3,
        "fleet": {"devices": devices, "links": LINKS, "image": "fleetune-mounted"},
        "model": MODEL,
        "data": {"source": "digits"},
        "training": {"rounds": 6, "batch_samples": 32, "micro_batch_samples": 8, "checkpoint_every_rounds": 2},
        "strategy": {"name": "pp"},
        "stages": {"launcher": "docker", "image": "fleetune-mounted"},
    }
    path = folder / "small.yaml"
    path.write_text(yaml.safe_dump({**plain, **changes}), encoding="utf-8")
    return path


@dataclasses.dataclass
class Told:
    """A run that has ended, and all that it said."""

    record: RunRecord
    store: Store
    events: list[StageEvent]


def run(path: Path, root: Path, *sets: str, until: str | None = None) -> Told:
    """The pipeline, as `fleetune run` conducts it."""
    events: list[StageEvent] = []
    store = Store(root)
    runner = Runner(
        RunContext(store=store, listen=events.append), configs.load(path, sets), StageSelection(until=until)
    )
    return Told(run_without_prefect(runner), store, events)


def fleet_of(told: Told) -> Fleet:
    """The fleet as it was found."""
    return json_io.read(Fleet, told.store.folder("fleet", told.record.outputs["fleet"]) / "fleet.json")


def configured(told: Told):  # type: ignore[no-untyped-def]
    """The config it ran with."""
    return told.record.config
