"""One way to train on a GPU: its fleet is discovered, its model profiled, its plan solved, and its rounds run."""

import itertools
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

from fleetune.clock import Clock
from fleetune.contracts.fleet_request import DeviceRequest, FleetRequest
from fleetune.contracts.run_config import DataRequest, Lora, ModelRequest
from fleetune.contracts.task import ignore_progress
from fleetune.contracts.training_request import TrainingRequest
from fleetune.discovery.discover import discover
from fleetune.launching import LocalSites
from fleetune.planning import solve
from fleetune.planning.strategy import Problem
from fleetune.preparation.prepare import PreparationTask, prepare
from fleetune.profiling.profile import profile
from fleetune.profiling.task import ProfilingTask
from fleetune.training.coordinator import train
from fleetune.training.task import TrainingTask

GPU = DeviceRequest(name="gpu", accelerator="cuda:0")
OTHER = DeviceRequest(name="other", accelerator="cuda:0")
CPU = DeviceRequest(name="cpu", accelerator="cpu", threads=4)
LORA = Lora(r=16, alpha=32, dropout=0.0, targets=("q_proj", "k_proj", "v_proj", "o_proj"))
SEED = 1


@dataclass(frozen=True, kw_only=True)
class Case:
    """What is trained, on what and how."""

    name: str
    model: ModelRequest
    data: DataRequest
    batch_samples: int
    micro_batch_samples: int
    devices: tuple[DeviceRequest, ...] = (GPU,)
    strategy: str = "single"

    def training(self, rounds: int) -> TrainingRequest:
        """Return the training's settings, with no checkpoint before the last round."""
        return TrainingRequest(
            rounds=rounds,
            batch_samples=self.batch_samples,
            micro_batch_samples=self.micro_batch_samples,
            checkpoint_every_rounds=rounds,
            learning_rate=5e-4,
            clip_norm=1.0,
        )


@dataclass(frozen=True, kw_only=True)
class Trained:
    """Measured, and what the clock said before."""

    round_s: float
    forecast_round_s: float
    peak_bytes: dict[str, float]
    forecast_bytes: dict[str, float]
    segments: tuple[tuple[str, ...], ...]
    """Devices of each segment of the plan."""


class Training:
    """A case that was prepared and profiled; it can be trained any number of times."""

    def __init__(self, case: Case, folder: Path) -> None:
        self.case, self._folder, self._numbers = case, folder, itertools.count()
        self.fleet = discover(FleetRequest(devices=case.devices), LocalSites(), ignore_progress, lambda _: None).fleet
        self.model_folder, self.data_folder = folder / "profile", folder / "data"
        prepare(
            PreparationTask(
                model=case.model,
                data=case.data,
                seed=SEED,
                model_folder=self.model_folder,
                data_folder=self.data_folder,
            )
        )
        self._profile = profile(
            ProfilingTask(
                fleet=self.fleet,
                model=case.model,
                training=case.training(1),
                seed=SEED,
                model_folder=self.model_folder,
                data_folder=self.data_folder,
                output=self.model_folder,
                work=folder / "profiling",
                sites=LocalSites(),
                progress=ignore_progress,
            )
        )
        problem = Problem(
            fleet=self.fleet,
            profile=self._profile,
            micro_batch_samples=case.micro_batch_samples,
            micro_batches=case.batch_samples // case.micro_batch_samples,
            seed=SEED,
        )
        self._plan = solve(case.strategy, problem)

    def run(self, rounds: int) -> Trained:
        """Train; the first two rounds do not count."""
        clock, made = Clock(self.fleet, self._profile), self._plan.plan
        folder = self._folder / f"training-{next(self._numbers)}"
        metrics = train(
            TrainingTask(
                plan=self._plan,
                fleet=self.fleet,
                profile=self._profile,
                model_folder=self.model_folder,
                data_folder=self.data_folder,
                model=self.case.model,
                training=self.case.training(rounds),
                seed=SEED,
                work=folder / "work",
                output=folder / "output",
                sites=LocalSites(),
                progress=ignore_progress,
            )
        )
        forecast = clock.forecast(made)
        return Trained(
            round_s=median(each.round_s for each in metrics.rounds[2:]),
            forecast_round_s=forecast.round_s,
            peak_bytes={each.device: each.amount for each in metrics.peak_memory_bytes},
            forecast_bytes={each.device: each.amount for each in forecast.memory_bytes},
            segments=tuple(segment.devices for segment in made.lanes[0].segments),
        )


def cases(quick: bool) -> tuple[Case, ...]:
    """Return the ways: all weights in bf16, adapters on a base of 4 bits, all weights on a GPU and a CPU,
    and all weights by two workers that share the GPU."""
    width, layers, length = (512, 4, 256) if quick else (2048, 4, 512)
    config = {
        "model_type": "llama", "hidden_size": width, "num_hidden_layers": layers, "num_attention_heads": width // 64,
        "num_key_value_heads": width // 64, "intermediate_size": 4 * width, "vocab_size": 320, "bos_token_id": None,
        "eos_token_id": None,
    }  # fmt: skip
    model = ModelRequest(task="causal-lm", config=config, mixed_precision="bf16")
    data = DataRequest(source="stdlib-sources", max_length=length, train_samples=256, test_samples=8)
    full = Case(name="full", model=model, data=data, batch_samples=32, micro_batch_samples=8)
    return (
        full,
        replace(full, name="qlora", model=replace(model, lora=LORA, quantization="nf4")),
        replace(full, name="with_cpu", devices=(GPU, CPU), strategy="asteroid"),
        replace(full, name="two_workers", devices=(GPU, OTHER), strategy="pp"),
    )
