"""What a measuring process says, line by line: `loading`, `measuring`, `progress`, then `costs`, which is an Answer, or
`scores`, which is Scores."""

from typing import Any, TypeVar

from fleetune.contracts import wire
from fleetune.contracts.record import record

LOADING, MEASURING, PROGRESS, COSTS, SCORES, ERROR = "loading", "measuring", "progress", "costs", "scores", "error"


@record
class UnitAnswer:
    """What one unit was seen to cost; lists follow the batch sizes."""

    name: str
    forward_s: tuple[float, ...]
    backward_s: tuple[float, ...]
    forward_usual: float = 1.0
    """How many times the minimum over the passes their median is."""
    backward_usual: float = 1.0
    activation_bytes: tuple[int, ...]
    flops: tuple[int, ...]


@record
class Answer:
    """All that one device found out."""

    runtime_bytes: int
    """Memory of the process before it held any unit, and what computing took beyond weights and kept activations."""
    profiling_s: float
    """From the first unit in memory to the last one measured, at the device's own pace."""
    units: tuple[UnitAnswer, ...]
    """In the order of the graph."""


@record
class HeadScores:
    """One head's (see contracts.profile.Subnet)."""

    name: str
    weight_magnitude: float
    gradient_magnitude: float
    fisher: tuple[float, ...]


@record
class Scores:
    """Those of all heads, in the order of models.heads."""

    heads: tuple[HeadScores, ...]


T = TypeVar("T", Answer, Scores)


def event_of(answer: Answer | Scores) -> dict[str, Any]:
    """The line that carries it."""
    return {"event": COSTS if isinstance(answer, Answer) else SCORES, **wire.dump(answer)}


def answer_of(event: dict[str, Any], owner: str) -> Answer:
    """The answer of a line; Refused where it is none."""
    return _of(Answer, event, owner)


def scores_of(event: dict[str, Any], owner: str) -> Scores:
    """The scores of a line; Refused where it has none."""
    return _of(Scores, event, owner)


def quickest(one: Answer, other: Answer) -> Answer:
    """`one` with the shorter of both times of every unit: noise only ever adds time."""
    units = (
        UnitAnswer(
            name=mine.name,
            forward_s=tuple(map(min, mine.forward_s, yours.forward_s)),
            backward_s=tuple(map(min, mine.backward_s, yours.backward_s)),
            forward_usual=mine.forward_usual,
            backward_usual=mine.backward_usual,
            activation_bytes=mine.activation_bytes,
            flops=mine.flops,
        )
        for mine, yours in zip(one.units, other.units, strict=True)
    )
    return Answer(runtime_bytes=one.runtime_bytes, profiling_s=one.profiling_s, units=tuple(units))


def _of(kind: type[T], event: dict[str, Any], owner: str) -> T:
    return wire.load(kind, {key: value for key, value in event.items() if key != "event"}, owner)
