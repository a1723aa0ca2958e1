"""What training and evaluation measured."""

from fleetune.contracts.record import record
from fleetune.contracts.timeline import DeviceAmount, LinkBytes, Row


@record
class RoundMetrics:
    """One committed optimizer step."""

    round: int
    loss: float
    """Mean over the round's targets."""
    gradient_norm: float | None
    """Global L2 norm before clipping; None where nothing is clipped."""
    learning_rate: float
    round_s: float
    """From the round's start to the end of the slowest device's backward and all-reduce."""


@record
class TrainingMetrics:
    """The `metrics` artifact of `train`."""

    rounds: tuple[RoundMetrics, ...]
    timeline: tuple[Row, ...]
    """Rows of one typical round (the one of median duration)."""
    peak_memory_bytes: tuple[DeviceAmount, ...]
    busy_s: tuple[DeviceAmount, ...]
    """Per device, computing in the median round."""
    link_bytes: tuple[LinkBytes, ...]
    """Per round."""
    median_round_s: float
    """Of the rounds that were trained by this plan; of all, where another plan trained all of them."""
    wall_s: float
    """From the first worker's start to the last commit of this attempt."""
    resumed_from_round: int = 0
    """Where this attempt began; timeline, bytes, busy times and peaks are of its own rounds."""
    plan_from_round: int = 0
    """The first round that was trained by this plan: those before it were trained by other plans, which their `round_s`
    tells of."""


@record
class Score:
    """A task's score on data that was not trained on."""

    name: str
    before: float
    after: float
    better: str
    """`higher` or `lower`."""


@record
class ClassScore:
    """How well one class is told from the others, after training."""

    name: str
    samples: int
    """Of the class, in the test split."""
    precision: float
    """Share of what was taken for the class that is of it; 0 where nothing was."""
    recall: float
    """Share of the class that was taken for it; 0 where there is none of it."""
    f1: float
    """Harmonic mean of both."""


@record
class EvaluationMetrics:
    """The `metrics` artifact of `evaluate`."""

    scores: tuple[Score, ...]
    samples: int
    forecast_round_s: float
    measured_round_s: float
    forecast_error: float
    """(forecast - measured) / measured."""
    bytes_per_round: int
    peak_memory_bytes: tuple[DeviceAmount, ...]
    energy_j: float | None = None
    """None where the machine cannot read it."""
    classes: tuple[ClassScore, ...] = ()
    """Of a classifier, by number."""
