"""Inputs of the profile stage, and of each of its measuring processes."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from fleetune.contracts.fleet import Device, Fleet
from fleetune.contracts.record import record
from fleetune.contracts.run_config import ModelRequest
from fleetune.contracts.task import Progress
from fleetune.contracts.training_request import TrainingRequest
from fleetune.launching import Sites
from fleetune.profiling.cache import MeasurementCache


def ignore_note(sentence: str) -> None:
    """Ignore a note."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfilingTask:
    """The whole input of the profile stage."""

    fleet: Fleet
    model: ModelRequest
    training: TrainingRequest
    seed: int
    model_folder: Path
    """graph.json, start.safetensors and model/config.json, as preparation wrote them."""
    data_folder: Path
    """The prepared data."""
    output: Path
    """Folder for profile.json."""
    work: Path
    sites: Sites
    """Sites of the measuring processes, already open."""
    progress: Progress
    note: Callable[[str], None] = ignore_note
    cache: MeasurementCache | None = None
    """Measurements of earlier runs; None: measure every device and store nothing."""
    scores: bool = False
    """True: also score attention heads."""
    codecs: bool = False
    """True: also time link codecs on every device."""
    partial: bool = False
    """True: also time backwards of which only a part is needed."""

    def on_device(self, device: Device, model: ModelRequest, **asked: Any) -> "MeasureTask":
        """Return the task of a measuring process on a device. asked: what it is to measure."""
        return MeasureTask(
            device=device.name,
            model=model,
            model_folder=str(self.model_folder),
            data_folder=str(self.data_folder),
            accelerator=device.accelerator,
            cores=device.cores if device.emulated and device.accelerator == "cpu" else None,
            threads=device.threads,
            memory_bytes=device.memory_bytes,
            **asked,
        )


@record
class ScoringTask:
    """Scoring of the first round's micro-batches, in the order of training."""

    seed: int
    batch_samples: int
    micro_batch_samples: int

    @property
    def micro_batches(self) -> int:
        """Number of micro-batches per round (M in the papers)."""
        return self.batch_samples // self.micro_batch_samples


@record
class MeasureTask:
    """Task of a measuring process; with `scoring` it scores heads instead of measuring."""

    device: str
    model: ModelRequest
    model_folder: str
    data_folder: str
    accelerator: str
    cores: float | None
    threads: int
    memory_bytes: int
    batch_sizes: tuple[int, ...]
    passes: int
    codecs: Annotated[bool, Field(exclude_if=lambda value: not value)] = False
    """True: also time link codecs."""
    gates: Annotated[bool, Field(exclude_if=lambda value: not value)] = False
    """True: also time a block of which some heads run."""
    partial: Annotated[bool, Field(exclude_if=lambda value: not value)] = False
    """True: also time backwards of which only a part is needed."""
    optimizer: str = "adamw"
    momentum: float = 0.0
    """The training's."""
    scoring: Annotated[ScoringTask | None, Field(exclude_if=lambda value: value is None)] = None
