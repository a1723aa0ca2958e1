"""A comparison of strategies, as it is stored and printed."""

from fleetune.contracts.metrics import DeviceAmount, Score
from fleetune.contracts.record import check_name, distinct, one_of, record

PLANNED, TRAINED, INFEASIBLE, REFUSED, FAILED = "planned", "trained", "infeasible", "refused", "failed"
LEAST_DIFFERENCE = 0.01
"""A smaller difference between two paces is none, whatever their noise."""
STATES = (PLANNED, TRAINED, INFEASIBLE, REFUSED, FAILED)


@record
class RoundFigures:
    """One round of a strategy, as the clock forecasts it or as it was measured, on the mean of many (`mean_rounds`)."""

    round_s: float
    """With its part of an average over lanes, where there are any."""
    memory_bytes: tuple[DeviceAmount, ...]
    """Peak of each device that takes part."""
    link_bytes: int
    """Bytes on all links."""
    noise: float | None = 0.0
    """Half the distance between the quartiles of its rounds, as a part of `round_s`; 0 for a forecast, None where there
    were too few rounds to know."""


@record
class LossPoint:
    """The loss at one moment of a training."""

    seconds: float
    """Seconds of rounds since the training began."""
    loss: float
    """Mean loss of the last rounds (see figures.WINDOW_ROUNDS)."""


@record
class ComparedStrategy:
    """The row of one strategy."""

    name: str
    """Name of a file in configs/strategies."""
    state: str
    """One of STATES; `failed`: a retry can help."""
    why: str = ""
    """Why it has no plan, is not trained, or was not trained to its end; empty otherwise."""
    run: str = ""
    """Id of its newest run; empty if it was refused before one began."""
    plan: str = ""
    """Digest of what its plan does and of its forecast, whatever the strategy is called; empty without a plan."""
    same_as: str = ""
    """The strategy before it that has the same plan, and whose run and measurements are its own; empty if none has."""
    samples: float = 0
    """Samples of one round on the mean, over all lanes."""
    average_every_rounds: int = 0
    """Rounds after which lanes are averaged; 0: they never are."""
    forecast: RoundFigures | None = None
    untrainable: tuple[str, ...] = ()
    """Features of its plan that cannot be trained yet."""
    measured: RoundFigures | None = None
    losses: tuple[LossPoint, ...] = ()
    target_s: float | None = None
    """Seconds of rounds until the target loss; None if it was not reached."""
    score: Score | None = None
    """Its first score on held-out data."""

    def __post_init__(self) -> None:
        one_of(f"strategy {self.name}", "state", self.state, STATES)

    def samples_per_s(self, figures: RoundFigures) -> float:
        """Samples per second by its forecast or measured figures; 0 for a round that takes no time."""
        return self.samples / figures.round_s if figures.round_s else 0.0

    def figures(self, measured: bool) -> RoundFigures | None:
        """Its measured or its forecast figures."""
        return self.measured if measured else self.forecast


@record
class ComparedDevice:
    """A device of the fleet."""

    name: str
    memory_bytes: int


def within_noise(one: float, other: float, *noises: float | None) -> bool:
    """True for amounts that differ by no more than the noises, parts of the smaller one, can explain together; any
    difference where one is not known."""
    if None in noises:
        return True
    noise = sum(each for each in noises if each is not None)
    return max(one, other) <= min(one, other) * (1 + max(LEAST_DIFFERENCE, noise))


@record
class Comparison:
    """Several strategies on one fleet and one profile."""

    id: str
    name: str
    """Name of the run file."""
    model: str
    started: str
    rounds: int
    """Rounds of a training."""
    devices: tuple[ComparedDevice, ...]
    measured_by: str
    """Id of the run that measured the fleet and the model."""
    fleet: str
    """Digest of the fleet that every strategy was planned on."""
    strategies: tuple[ComparedStrategy, ...]
    target_loss: float | None = None
    """The loss that `target_s` refers to; None before training."""

    def __post_init__(self) -> None:
        check_name("comparison", self.id)
        distinct(f"comparison {self.id}", "strategy", (row.name for row in self.strategies))

    def level_with(self, row: ComparedStrategy, measured: bool) -> tuple[ComparedStrategy, ...]:
        """The strategies whose plan is that of `row`, it among them, or that were as fast as far as noise can tell."""
        own = row.figures(measured)
        return tuple(
            other
            for other in self.strategies
            if (figures := other.figures(measured)) and own
            if (other.plan == row.plan != "" or other.name == row.name)
            or within_noise(row.samples_per_s(own), other.samples_per_s(figures), own.noise, figures.noise)
        )

    @property
    def by_forecast(self) -> tuple[ComparedStrategy, ...]:
        """The strategies that have a plan; the most forecast samples per second come first."""
        planned = [(row.samples_per_s(row.forecast), row) for row in self.strategies if row.forecast]
        return tuple(row for _, row in sorted(planned, key=lambda one: -one[0]))

    @property
    def by_measurement(self) -> tuple[ComparedStrategy, ...]:
        """The strategies that were trained; the most measured samples per second come first."""
        trained = [(row.samples_per_s(row.measured), row) for row in self.strategies if row.measured]
        return tuple(row for _, row in sorted(trained, key=lambda one: -one[0]))

    @property
    def by_target(self) -> tuple[ComparedStrategy, ...]:
        """The strategies that reached the target loss, the earliest first."""
        reached = [(row.target_s, row) for row in self.strategies if row.target_s is not None]
        return tuple(row for _, row in sorted(reached, key=lambda one: one[0]))
