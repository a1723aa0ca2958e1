"""Timelines, forecasts and measurements.

Forecast and measured timelines share one row type, so a plan's error is a subtraction and one function draws both.
"""

from collections.abc import Sequence
from dataclasses import field
from typing import Annotated, Any

from pydantic import Field

from fleetune.contracts.record import not_negative, positive, record
from fleetune.errors import Refused


def _neutral(value: Any) -> bool:
    """Return True for a field's neutral value, which is left out of the JSON form."""
    return not value


@record
class TimelineRow:
    """One span of work or of a transfer."""

    device: str
    """Name of the device, or `a>b` for a transfer on the link from a to b."""
    lane: str
    action: str
    """Spelling of the action, such as `main/2F0`."""
    start_s: float
    """Seconds since the start of the round."""
    end_s: float
    bytes: int = 0

    def __post_init__(self) -> None:
        not_negative(f"row {self.device} {self.action}", bytes=self.bytes)
        if not self.end_s >= self.start_s:
            raise Refused(f"row {self.device} {self.action}: ends at {self.end_s} before it starts at {self.start_s}")

    @property
    def is_transfer(self) -> bool:
        """True for a transfer on a link."""
        return ">" in self.device


@record
class LinkBytes:
    """Bytes carried by one directed link."""

    source: str
    target: str
    bytes: int


@record
class DeviceAmount:
    """A quantity of one device; the name of the field that holds it gives the unit."""

    device: str
    amount: float


@record
class Interval:
    """The seconds that a round takes at the best and at the worst of what was measured of devices and links."""

    low_s: float
    high_s: float

    def __post_init__(self) -> None:
        not_negative("interval", low_s=self.low_s)
        if not self.high_s >= self.low_s:
            raise Refused(f"interval: high_s {self.high_s} is below low_s {self.low_s}")

    def covers(self, seconds: float) -> bool:
        """Return whether a duration lies within the interval."""
        return self.low_s <= seconds <= self.high_s


@record
class PartialRounds:
    """Rounds between two averages in which the same lanes rest."""

    rounds: int
    round_s: float
    """Seconds of one of them."""

    def __post_init__(self) -> None:
        positive("partial rounds", rounds=self.rounds)
        not_negative("partial rounds", round_s=self.round_s)


@record
class Forecast:
    """Simulated timeline of one round of a plan, with totals per device and link."""

    round_s: float
    """Seconds from the round's start to the last gradient, as `RoundMetrics` measures it, without an average."""
    rows: tuple[TimelineRow, ...]
    busy_s: tuple[DeviceAmount, ...]
    memory_bytes: tuple[DeviceAmount, ...]
    """Peak memory of each device, the runtime's own included."""
    link_bytes: tuple[LinkBytes, ...]
    """Bytes of a round, without an average."""
    average: Annotated[tuple[TimelineRow, ...], Field(exclude_if=_neutral)] = ()
    """Transfers of the average over lanes, a row per link and segment, from its start. Neutral: empty, none."""
    average_every_rounds: Annotated[int, Field(exclude_if=_neutral)] = 0
    """The plan's."""
    interval: Annotated[Interval | None, Field(exclude_if=_neutral)] = None
    """Of `round_s`; None where neither devices nor links have a known spread, as simulated ones."""
    period_s: Annotated[float, Field(exclude_if=_neutral)] = 0.0
    """Seconds from one commit to the next, without an average: `round_s`, and before it the commit and the optimizer
    steps that the round's first task waits for. 0 where the profile does not know these, as of simulated devices."""
    partial_rounds: Annotated[tuple[PartialRounds, ...], Field(exclude_if=_neutral)] = ()
    """Rounds in which lanes rest; all else here is of a round in which none does. Neutral: empty, there are none."""
    refresh_round_s: Annotated[float, Field(exclude_if=_neutral)] = 0.0
    """Seconds of a round that runs every subnet in full, to choose gates by its scores; what scoring itself takes is
    not known. All else here is of the other rounds. Neutral: 0, there are none."""
    refresh_every_rounds: Annotated[int, Field(exclude_if=_neutral)] = 0
    """The plan's `refresh_gates_every_rounds`."""

    @property
    def average_s(self) -> float:
        """Seconds of an average; 0 without any."""
        return span_s(self.average)

    @property
    def mean_round_s(self) -> float:
        """Seconds of a round with its part of an average, or of a refresh of gates: what many rounds take, divided by
        their number."""
        mean_s = self.round_s
        if every := self.refresh_every_rounds:
            mean_s += (self.refresh_round_s - self.round_s) / every
        if every := self.average_every_rounds:
            saved_s = sum(each.rounds * (self.round_s - each.round_s) for each in self.partial_rounds)
            mean_s += (self.average_s - saved_s) / every
        return mean_s


def span_s(rows: Sequence[TimelineRow]) -> float:
    """Return the seconds from the first start to the last end; 0 for no rows."""
    return max(row.end_s for row in rows) - min(row.start_s for row in rows) if rows else 0.0


@record
class RoundMetrics:
    """One committed optimizer step."""

    round: int
    loss: float
    """Mean loss over the round's targets."""
    gradient_norm: float | None
    """Global L2 norm before clipping; None if clipping is off."""
    learning_rate: float
    round_s: float
    """Seconds from the round's start to the end of the slowest device's backward and all-reduce."""
    moves: Annotated[dict[str, tuple[str, ...]], Field(exclude_if=_neutral)] = field(default_factory=dict)
    """Lane -> units that it trains from the next round on, where they were dealt anew. Neutral: empty, as before."""
    gates: Annotated[dict[str, str], Field(exclude_if=_neutral)] = field(default_factory=dict)
    """Subnet -> its operations from the next round on, as they were chosen by this round's scores, for which all
    subnets ran in full. Neutral: empty, it was a round like others."""
    energy_j: Annotated[float | None, Field(exclude_if=lambda value: value is None)] = None
    """Joules since the reports of the round before, by the counters of its machines; None unless all of them tell."""
    loss_scale: Annotated[float | None, Field(exclude_if=lambda value: value is None)] = None
    """What the loss was multiplied by in fp16; None in other precisions."""
    overflowed: Annotated[tuple[str, ...], Field(exclude_if=_neutral)] = ()
    """Lanes that took no step, as their gradients were not finite in fp16."""
    resting: Annotated[tuple[str, ...], Field(exclude_if=_neutral)] = ()
    """Lanes that had taken all their steps until the next average."""

    @property
    def is_whole(self) -> bool:
        """True for a round like the one that is forecast: no lane rests, and no subnet runs in full to be scored."""
        return not (self.resting or self.gates)


@record
class RoundScores:
    """Scores of the state after so many rounds, on held-out samples."""

    rounds: int
    values: dict[str, float]
    """Name -> score; `loss` is one of them."""


@record
class TrainingMetrics:
    """The `metrics` artifact of `train`."""

    rounds: tuple[RoundMetrics, ...]
    timeline: tuple[TimelineRow, ...]
    """Rows of the round of median duration."""
    peak_memory_bytes: tuple[DeviceAmount, ...]
    """In the rounds of the plan that was forecast; in all rounds if there are none."""
    busy_s: tuple[DeviceAmount, ...]
    """Compute seconds of each device in the median round."""
    link_bytes: tuple[LinkBytes, ...]
    """Bytes per round."""
    median_round_s: float
    """Median over the rounds from `plan_from_round` to `revised_from_round` in which no lane rests; over all rounds if
    there are none."""
    wall_s: float
    """Seconds from the first worker's start to the last commit of this attempt."""
    resumed_from_round: int = 0
    """First round of this attempt; timeline, bytes, busy times and peaks cover only its own rounds."""
    plan_from_round: int = 0
    """First round trained by this plan on this fleet and profile; the `round_s` of earlier rounds belongs to others."""
    average: Annotated[tuple[TimelineRow, ...], Field(exclude_if=_neutral)] = ()
    """Transfers of an average over lanes of median duration, from its start; empty if none was measured."""
    revised_from_round: Annotated[int | None, Field(exclude_if=lambda value: value is None)] = None
    """First round that another plan trained: as devices were lost, or blocks had moved; None: all are this plan's."""
    replanned_from_round: Annotated[int | None, Field(exclude_if=lambda value: value is None)] = None
    """First round of this attempt that a plan for other devices, or for another pace of one, trained; None: none."""
    gates_from_round: Annotated[int, Field(exclude_if=_neutral)] = 0
    """First round trained by this plan, on whatever measurements: gates that were chosen before it are of others."""

    scores: Annotated[tuple[RoundScores, ...], Field(exclude_if=_neutral)] = ()
    """While it trained, in the order of rounds; empty unless `training.evaluate_every_rounds` is set."""
    result_rounds: Annotated[int | None, Field(exclude_if=lambda value: value is None)] = None
    """Rounds in the result, where that is the best state and not the last one."""
    chosen: Annotated[bool, Field(exclude_if=_neutral)] = False
    """Its end or its result was chosen by these scores."""
    ended_early: Annotated[str, Field(exclude_if=_neutral)] = ""
    """Why rounds of the config were left out, in a sentence; empty if none was."""

    @property
    def rounds_as_planned(self) -> tuple[RoundMetrics, ...]:
        """The rounds that this plan trained as it was forecast, before blocks moved or another one followed."""
        return self.rounds[self.plan_from_round : self.revised_from_round]

    @property
    def average_s(self) -> float:
        """Seconds of an average; 0 if none was measured."""
        return span_s(self.average)


@record
class Score:
    """A task's score on held-out data, before and after training."""

    name: str
    before: float
    after: float
    better: str
    """`higher` or `lower`."""


@record
class ClassScore:
    """Precision, recall and F1 of one class after training."""

    name: str
    samples: int
    """Samples of the class in the test split."""
    precision: float
    """Share of the predictions of this class that are right; 0 without predictions."""
    recall: float
    """Share of the class's samples that were predicted as it; 0 without samples."""
    f1: float
    """Harmonic mean of precision and recall."""


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
    """Joules of training; None if the machine cannot measure them."""
    forecast_interval: Annotated[Interval | None, Field(exclude_if=_neutral)] = None
    """The forecast's."""
    forecast_bytes_per_round: Annotated[int, Field(exclude_if=_neutral)] = 0
    """What was to be sent; 0 where nothing was."""
    forecast_memory_bytes: Annotated[tuple[DeviceAmount, ...], Field(exclude_if=_neutral)] = ()
    """Peaks by forecast, of the devices in `peak_memory_bytes`."""
    classes: tuple[ClassScore, ...] = ()
    """Scores by class number; empty unless the model is a classifier."""
    trained_on: Annotated[int | None, Field(exclude_if=lambda value: value is None)] = None
    """Of `samples`, those that the model was trained on; None: not known."""
    sequences: Annotated[bool, Field(exclude_if=_neutral)] = False
    """True if sequences are counted, which several samples share, and not samples."""
    chose: Annotated[bool, Field(exclude_if=_neutral)] = False
    """The result was chosen by these samples, or the end of its training."""

    @property
    def scored(self) -> str:
        """`50 samples not trained on`, as far as that is known."""
        return f"{self.samples} {'sequences' if self.sequences else 'samples'}{self.seen}"

    @property
    def seen(self) -> str:
        """What follows the samples: how many of them were trained on, or how many sequences with such a one, as far as
        that is known, and whether they chose the result."""
        which = "of the sequences" if self.sequences else "of them"
        seen = f", {self.trained_on} {which} trained on" if self.trained_on else " not trained on"
        return ("" if self.trained_on is None else seen) + (", by which the result was chosen" if self.chose else "")
