"""One model prepared and profiled as the stages do it, and how long that took every device."""

import time
from dataclasses import dataclass
from pathlib import Path

from benchmarks.parts.profiling.setting import Model
from fleetune.contracts.fleet import Fleet
from fleetune.contracts.run_config import TrainingRequest
from fleetune.contracts.task import quiet
from fleetune.launching import Sites
from fleetune.preparation import PreparationTask, prepare
from fleetune.profiling import ProfilingTask, profile

SEED = 1


@dataclass(frozen=True)
class Timed:
    """A model on all devices at once."""

    model: Model
    units: int
    batch_sizes: tuple[int, ...]
    profiling_s: dict[str, float]
    """device -> seconds at its own pace, from the first unit in memory to the last one measured"""
    wall_s: float
    """Of the whole: data, recording, starting the processes, measuring."""


def timed(model: Model, fleet: Fleet, sites: Sites, folder: Path) -> Timed:
    """Profile it on a fleet whose sites are open; nothing is taken from earlier runs."""
    began_s = time.perf_counter()
    folders = {"model_folder": folder / "model", "data_folder": folder / "data"}
    prepare(PreparationTask(model=model.request, data=model.data, seed=SEED, **folders))
    made = profile(
        ProfilingTask(
            fleet=fleet,
            model=model.request,
            training=TrainingRequest(rounds=1, batch_samples=model.largest, micro_batch_samples=model.largest),
            seed=SEED,
            **folders,
            output=folder / "profile",
            work=folder / "work",
            sites=sites,
            progress=quiet,
        )
    )
    wall_s = time.perf_counter() - began_s
    spent = {times.device: times.profiling_s or 0.0 for times in made.times}
    return Timed(model, len(made.units), made.batch_sizes, spent, wall_s)
