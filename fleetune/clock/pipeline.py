"""A pipeline whose round is simulated (`pipeline_simulation`), and the trace of it.

A stage here is a paper's pipeline stage (a segment in a plan): its members share every micro-batch by samples. A cut
lies between neighbouring stages. Devices are rows of the link matrices.
"""

from typing import NamedTuple

from fleetune.contracts.record import not_negative, positive, record
from fleetune.errors import Refused

Order = tuple[tuple[str, int], ...]
"""Explicit order of a member: ("F" or "B", micro-batch) of each task."""


@record
class Member:
    """A device of a stage."""

    device: int
    """Row and column of the link matrices."""
    samples: int
    """Samples of every micro-batch."""
    forward_ns: int
    backward_ns: int
    order: Order | None = None
    """Neutral: None, one-forward-one-backward with the stage's warm-up."""

    def __post_init__(self) -> None:
        not_negative("member", device=self.device, forward_ns=self.forward_ns, backward_ns=self.backward_ns)
        positive("member", samples=self.samples)


@record
class PipelineStage:
    """Devices that run the same layers on different samples."""

    members: tuple[Member, ...]
    """Members in the order in which the samples of a micro-batch are dealt."""
    warmup: int
    """Forwards before the first backward; capped at the number of micro-batches."""
    trainable_bytes: int
    """Bytes that the ring all-reduce of several members sums."""
    output_bytes: int = 0
    """Bytes per sample to the next stage; the last stage sends nothing."""
    gradient_bytes: int = 0
    """Bytes per sample back across the same cut."""

    def __post_init__(self) -> None:
        positive("stage", members=len(self.members), warmup=self.warmup)
        not_negative(
            "stage",
            trainable_bytes=self.trainable_bytes,
            output_bytes=self.output_bytes,
            gradient_bytes=self.gradient_bytes,
        )


@record
class Pipeline:
    """Input of the simulation: stages, micro-batches and links."""

    stages: tuple[PipelineStage, ...]
    micro_batches: int
    bandwidth_bytes_per_s: tuple[tuple[float, ...], ...]
    """[from][to]; the diagonal is ignored."""
    latency_s: tuple[tuple[float, ...], ...]
    """[from][to]"""

    def __post_init__(self) -> None:
        positive("pipeline", stages=len(self.stages), micro_batches=self.micro_batches)
        if len({sum(m.samples for m in stage.members) for stage in self.stages}) != 1:
            raise Refused("pipeline: every stage must deal the same number of samples")
        devices = [member.device for stage in self.stages for member in stage.members]
        if len(set(devices)) != len(devices):
            raise Refused("pipeline: a device may be a member once")


class TaskSpan(NamedTuple):
    """A forward (F) or backward (B) of a member, with its start and end."""

    stage: int
    place: int
    letter: str
    micro_batch: int
    start_ns: int
    end_ns: int


class TransferSpan(NamedTuple):
    """Bytes between members of neighbouring stages; `letter` and `micro_batch` are those of the task that sent them."""

    sender: tuple[int, int]
    """Stage, and place within it."""
    receiver: tuple[int, int]
    letter: str
    micro_batch: int
    bytes: int
    start_ns: int
    end_ns: int
    """Time at which the ports are free again."""
    arrival_ns: int


class AllReduceSpan(NamedTuple):
    """The all-reduce of a stage's gradients."""

    stage: int
    start_ns: int
    end_ns: int


class PipelineTrace(NamedTuple):
    """Trace of one round.

    `deadlocked` lists (stage, place, position in its order) of every task that waits for ever; it is empty if the round
    is complete.
    """

    round_ns: int
    tasks: tuple[TaskSpan, ...]
    transfers: tuple[TransferSpan, ...]
    reduces: tuple[AllReduceSpan, ...]
    deadlocked: tuple[tuple[int, int, int], ...] = ()
