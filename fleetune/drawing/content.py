"""What a report is made of."""

from dataclasses import field

from fleetune.contracts.fleet import Fleet
from fleetune.contracts.metrics import EvaluationMetrics, Forecast, TrainingMetrics
from fleetune.contracts.plan import PlanResult
from fleetune.contracts.profile import Profile
from fleetune.contracts.record import record
from fleetune.errors import Refused


@record
class ReportContent:
    """A run from its fleet to its scores, or to its plan where nothing was trained."""

    title: str
    fleet: Fleet
    profile: Profile
    plan: PlanResult
    forecast: Forecast
    training: TrainingMetrics | None = None
    evaluation: EvaluationMetrics | None = None
    """Both or none."""
    facts: dict[str, str] = field(default_factory=dict)
    """Shown as a list at the end: seed, digests, versions."""
    settings: str = ""
    """The config of the run, as text."""

    def __post_init__(self) -> None:
        if (self.training is None) != (self.evaluation is None):
            raise Refused("report: training and evaluation belong together; give both or none")
