"""What evaluation is given."""

from dataclasses import dataclass, field
from pathlib import Path

from fleetune.contracts.fleet import Fleet
from fleetune.contracts.metrics import Forecast, TrainingMetrics
from fleetune.contracts.plan import PlanResult
from fleetune.contracts.profile import Profile
from fleetune.contracts.run_config import ModelRequest
from fleetune.contracts.task import Progress, quiet


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationTask:
    """The whole input of the evaluate stage."""

    run: str
    """Name of the run, for the report's title."""
    fleet: Fleet
    profile: Profile
    plan: PlanResult
    forecast: Forecast
    training: TrainingMetrics
    model: ModelRequest
    profile_folder: Path
    """start.safetensors and model/config.json, from which training started."""
    data_folder: Path
    checkpoint_folder: Path
    """Holds model/ (a Hugging Face folder) or adapter/ (a PEFT folder)."""
    output: Path
    """Gets evaluation.json, summary.json and report.html."""
    batch_samples: int = 32
    accelerator: str = "cpu"
    """Where the model is scored: `cpu`, or `cuda:N`."""
    facts: dict[str, str] = field(default_factory=dict)
    """More for the list at the report's end."""
    settings: str = ""
    """The run's whole config as text, for the report."""
    progress: Progress = quiet
