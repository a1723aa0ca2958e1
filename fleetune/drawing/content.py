"""What a report is made of."""

from dataclasses import field

from fleetune.contracts.fleet import Fleet
from fleetune.contracts.metrics import EvaluationMetrics, TrainingMetrics
from fleetune.contracts.plan import PlanResult
from fleetune.contracts.profile import Profile
from fleetune.contracts.record import record
from fleetune.contracts.timeline import Forecast


@record
class ReportContent:
    """A run from its fleet to its scores."""

    title: str
    fleet: Fleet
    profile: Profile
    plan: PlanResult
    forecast: Forecast
    training: TrainingMetrics
    evaluation: EvaluationMetrics
    facts: dict[str, str] = field(default_factory=dict)
    """Shown as a list at the end: seed, digests, versions."""
