"""Messages of a measuring process, one per line: `loading`, `measuring`, `progress`, then `costs` (a DeviceMeasurement)
or `scores` (Scores)."""

from dataclasses import replace
from typing import Annotated, Any, TypeVar

from pydantic import Field

from fleetune.contracts import json_io
from fleetune.contracts.head_scores import HeadScores
from fleetune.contracts.profile import CodecTime, GateTimes, PartialPasses, Spread
from fleetune.contracts.record import record

LOADING, MEASURING, PROGRESS, COSTS, SCORES, ERROR = "loading", "measuring", "progress", "costs", "scores", "error"


@record
class UnitMeasurement:
    """Measured costs of one unit; tuples have one element per batch size."""

    name: str
    forward_s: tuple[float, ...]
    backward_s: tuple[float, ...]
    forward_usual: float = 1.0
    """Usual time divided by the minimum over passes."""
    backward_usual: float = 1.0
    activation_bytes: tuple[int, ...]
    workspace_bytes: tuple[int, ...]
    flops: tuple[int, ...]
    update_s: float = 0.0
    """See contracts.profile.DeviceTimes."""


@record
class DeviceMeasurement:
    """All measurements of one device."""

    runtime_bytes: int
    """Memory of the process before it holds any unit, and of the libraries' code that units run."""
    profiling_s: float
    """Seconds from the first unit in memory to the last one measured, at the device's speed."""
    units: tuple[UnitMeasurement, ...]
    """Units in the order of the graph."""
    codecs: Annotated[tuple[CodecTime, ...], Field(exclude_if=lambda value: not value)] = ()
    """Times of link codecs; empty unless the task asks for them."""
    feedback_s_per_byte: Annotated[float, Field(exclude_if=lambda value: not value)] = 0.0
    """See contracts.profile.DeviceTimes; measured with codecs."""
    stretch: float = 1.0
    """See contracts.profile.DeviceTimes."""
    spread: Spread | None = None
    """See contracts.profile.DeviceTimes."""
    message_wait_s: float = 0.0
    """See contracts.profile.DeviceTimes."""
    gates: Annotated[GateTimes | None, Field(exclude_if=lambda value: value is None)] = None
    """See contracts.profile.DeviceTimes; None unless the task asks for them."""
    partial: Annotated[PartialPasses | None, Field(exclude_if=lambda value: value is None)] = None
    """See contracts.profile.DeviceTimes; None unless the task asks for it."""


@record
class Scores:
    """Scores of all heads, in the order of `models.attention_heads`."""

    heads: tuple[HeadScores, ...]
    rows: tuple[int, ...] = ()
    """Of the training split, in the order of the micro-batches."""


T = TypeVar("T", DeviceMeasurement, Scores)


def to_message(answer: DeviceMeasurement | Scores) -> dict[str, Any]:
    """The message that carries a measurement or scores."""
    return {"event": COSTS if isinstance(answer, DeviceMeasurement) else SCORES, **json_io.dump(answer)}


def parse_measurement(event: dict[str, Any], owner: str) -> DeviceMeasurement:
    """The measurement in a message. Raises Refused for malformed messages."""
    return _of(DeviceMeasurement, event, owner)


def parse_scores(event: dict[str, Any], owner: str) -> Scores:
    """The scores in a message. Raises Refused for malformed messages."""
    return _of(Scores, event, owner)


def minimum_times(one: DeviceMeasurement, other: DeviceMeasurement) -> DeviceMeasurement:
    """`one` with the shorter of both times of every unit, since noise only adds time."""
    units = (
        UnitMeasurement(
            name=mine.name,
            forward_s=tuple(map(min, mine.forward_s, yours.forward_s)),
            backward_s=tuple(map(min, mine.backward_s, yours.backward_s)),
            forward_usual=mine.forward_usual,
            backward_usual=mine.backward_usual,
            activation_bytes=mine.activation_bytes,
            workspace_bytes=mine.workspace_bytes,
            flops=mine.flops,
            update_s=min(mine.update_s, yours.update_s),
        )
        for mine, yours in zip(one.units, other.units, strict=True)
    )
    return replace(one, units=tuple(units))


def with_extras(one: DeviceMeasurement, older: DeviceMeasurement) -> DeviceMeasurement:
    """`one` with what only the older one was asked for: else two kinds of runs would measure anew by turns for ever."""
    return replace(
        one,
        codecs=one.codecs or older.codecs,
        feedback_s_per_byte=one.feedback_s_per_byte or older.feedback_s_per_byte,
        gates=one.gates or older.gates,
        partial=one.partial or older.partial,
    )


def _of(kind: type[T], event: dict[str, Any], owner: str) -> T:
    return json_io.load(kind, {key: value for key, value in event.items() if key != "event"}, owner)
