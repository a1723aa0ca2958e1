"""What profiling is given: by the stage to the conductor, and by the conductor to each measuring process."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from pydantic import Field

from fleetune.contracts.fleet import Fleet
from fleetune.contracts.record import record
from fleetune.contracts.run_config import ModelRequest, TrainingRequest
from fleetune.contracts.task import Progress
from fleetune.launching import Sites
from fleetune.profiling.cache import MeasurementCache


def unheard(sentence: str) -> None:
    """A listener to notes that is not there."""


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
    """Gets profile.json."""
    work: Path
    sites: Sites
    """Where the measuring processes run; entered already."""
    progress: Progress
    note: Callable[[str], None] = unheard
    cache: MeasurementCache | None = None
    """Answers of earlier runs; None measures every device and keeps nothing."""
    scores: bool = False
    """Whether heads of attention are scored, too."""


@record
class ScoringTask:
    """What is scored: the first round's micro-batches, as training will deal them."""

    seed: int
    batch_samples: int
    micro_batch_samples: int

    @property
    def micro_batches(self) -> int:
        """M of the papers."""
        return self.batch_samples // self.micro_batch_samples


@record
class MeasureTask:
    """What a measuring process is given; with `scoring` it scores and measures nothing."""

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
    scoring: Annotated[ScoringTask | None, Field(exclude_if=lambda value: value is None)] = None
