"""Seats of a plan, a device's place in one segment of one lane, and the samples that cross between neighbours' seats.

A device may have any number of seats.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from fleetune.contracts.plan import Lane, Plan, Segment


@dataclass(frozen=True, slots=True)
class Seat:
    """One device's place in one segment."""

    device: str
    lane: Lane
    index: int
    """Number of the segment in its lane."""

    @property
    def segment(self) -> Segment:
        """The segment that the device runs."""
        return self.lane.segments[self.index]

    @property
    def span(self) -> tuple[int, int]:
        """[first, end) of its samples in each micro-batch."""
        return self.segment.span(self.device)

    @property
    def samples(self) -> int:
        """The number of samples that the device takes of each micro-batch."""
        first, end = self.span
        return end - first

    @property
    def is_first(self) -> bool:
        """True if the seat reads the model's inputs."""
        return self.index == 0

    @property
    def is_last(self) -> bool:
        """True if the seat reads labels and computes the loss."""
        return self.index == len(self.lane.segments) - 1

    @property
    def is_leader(self) -> bool:
        """True if the seat reports and saves the state that all members of its group share."""
        return self.segment.devices[0] == self.device

    def __str__(self) -> str:
        return f"{self.lane.name}/{self.index}"


def seats_of(plan: Plan, device: str | None = None) -> Iterator[Seat]:
    """Yield the seats of a device, or of all devices, in the order of lanes, segments and shares."""
    for lane in plan.lanes:
        for index, segment in enumerate(lane.segments):
            for name in segment.devices:
                if device in (None, name):
                    yield Seat(name, lane, index)


@dataclass(frozen=True, slots=True)
class SampleTransfer:
    """Samples [first, end) of a micro-batch that both `source` and `target` hold."""

    source: str
    target: str
    first: int
    end: int
    carries_shared: bool
    """True if values that are the same for all samples travel with this transfer (once per target)."""

    @property
    def samples(self) -> int:
        """The number of samples."""
        return self.end - self.first


def sample_transfers(before: Segment, after: Segment) -> tuple[SampleTransfer, ...]:
    """Return the transfers between two neighbouring segments, in the order of senders, then receivers."""
    found: list[SampleTransfer] = []
    served: set[str] = set()
    for source in before.devices:
        a, b = before.span(source)
        for target in after.devices:
            x, y = after.span(target)
            if max(a, x) < min(b, y):
                found.append(SampleTransfer(source, target, max(a, x), min(b, y), target not in served))
                served.add(target)
    return tuple(found)
