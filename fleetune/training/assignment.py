"""The part of a plan that each device takes: its segment, its samples and the transfers with its neighbours."""

from dataclasses import dataclass

from fleetune.contracts.plan import Lane, Plan, Segment
from fleetune.errors import Refused


@dataclass(frozen=True, slots=True)
class SampleTransfer:
    """Samples [first, end) of a micro-batch that both `source` and `target` hold."""

    source: str
    target: str
    first: int
    end: int
    carries_shared: bool
    """True if values that are the same for all samples travel with this transfer (once per target)."""


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


@dataclass(frozen=True, slots=True)
class Assignment:
    """One device's part of a plan."""

    device: str
    lane: Lane
    index: int
    incoming: tuple[SampleTransfer, ...]
    """Transfers that the device's forward reads, in the order of samples."""
    outgoing: tuple[SampleTransfer, ...]
    """Transfers of the forward's outputs, in the order of samples."""

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
        """True if the device reads the model's inputs."""
        return self.index == 0

    @property
    def is_last(self) -> bool:
        """True if the device reads labels and computes the loss."""
        return self.index == len(self.lane.segments) - 1

    @property
    def is_leader(self) -> bool:
        """True if the device reports and saves the state that all members of its group share."""
        return self.segment.devices[0] == self.device


def assignment_of(plan: Plan, device: str) -> Assignment:
    """Return the device's part of the plan; Refused for a device that the plan leaves out."""
    for lane in plan.lanes:
        for index, segment in enumerate(lane.segments):
            if device in segment.devices:
                before = sample_transfers(lane.segments[index - 1], segment) if index else ()
                more = index + 1 < len(lane.segments)
                after = sample_transfers(segment, lane.segments[index + 1]) if more else ()
                incoming = tuple(transfer for transfer in before if transfer.target == device)
                outgoing = tuple(transfer for transfer in after if transfer.source == device)
                return Assignment(device, lane, index, incoming, outgoing)
    raise Refused(f"plan: device {device!r} has no part in it; devices with a part are {', '.join(plan.devices)}")


def peers_of(plan: Plan, device: str) -> tuple[str, ...]:
    """Return the workers that this one may exchange tensors with, its neighbours first.

    All devices of the lane are peers, since any segment may hold a shared weight.
    """
    own = assignment_of(plan, device)
    senders, receivers = [t.source for t in own.incoming], [t.target for t in own.outgoing]
    lane = [d for segment in own.lane.segments for d in segment.devices]
    return tuple(d for d in dict.fromkeys([*senders, *receivers, *own.segment.devices, *lane]) if d != device)
