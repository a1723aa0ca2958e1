"""A pipeline in numbers only.

A stage here is a paper's pipeline stage (our segment): members share every micro-batch by samples, a cut lies between
neighbouring stages. Devices are rows of the link matrices.
"""

from fleetune.contracts.record import not_negative, positive, record
from fleetune.errors import Refused

Order = tuple[tuple[str, int], ...]
"""What a member does: ("F" or "B", micro-batch), in order."""


@record
class Member:
    """A device of a stage."""

    device: int
    """Row and column of the link matrices."""
    samples: int
    """Of every micro-batch."""
    forward_ns: int
    backward_ns: int
    order: Order | None = None
    """Neutral: None, one-forward-one-backward with the stage's warm-up."""

    def __post_init__(self) -> None:
        not_negative("member", device=self.device, forward_ns=self.forward_ns, backward_ns=self.backward_ns)
        positive("member", samples=self.samples)


@record
class Stage:
    """Devices that run the same layers on different samples."""

    members: tuple[Member, ...]
    """In the order in which the samples of a micro-batch are dealt."""
    warmup: int
    """Forwards before the first backward; more than micro_batches counts as all."""
    trainable_bytes: int
    """What the ring all-reduce sums when there are several members."""
    output_bytes: int = 0
    """Per sample, to the next stage; the last stage sends nothing."""
    gradient_bytes: int = 0
    """Per sample, back across the same cut."""

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
    """All that decides how long a round takes."""

    stages: tuple[Stage, ...]
    micro_batches: int
    bandwidth_bytes_per_s: tuple[tuple[float, ...], ...]
    """[from][to]; the diagonal is not read."""
    latency_s: tuple[tuple[float, ...], ...]
    """[from][to]"""

    def __post_init__(self) -> None:
        positive("pipeline", stages=len(self.stages), micro_batches=self.micro_batches)
        if len({sum(m.samples for m in stage.members) for stage in self.stages}) != 1:
            raise Refused("pipeline: every stage must deal the same number of samples")
        devices = [member.device for stage in self.stages for member in stage.members]
        if len(set(devices)) != len(devices):
            raise Refused("pipeline: a device may be a member once")
