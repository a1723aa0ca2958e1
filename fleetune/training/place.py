"""Where a device stands in a plan: its lane, its segment, its neighbours and its samples."""

from dataclasses import dataclass

from fleetune.contracts.plan import Lane, Plan, Segment
from fleetune.errors import Refused
from fleetune.training.shares import Overlap, overlaps


@dataclass(frozen=True, slots=True)
class Place:
    """One device's part of a plan."""

    device: str
    lane: Lane
    index: int
    inflow: tuple[Overlap, ...]
    """Transfers into this device's forward, in the order of samples."""
    outflow: tuple[Overlap, ...]
    """Transfers out of it."""

    @property
    def segment(self) -> Segment:
        """The segment the device runs."""
        return self.lane.segments[self.index]

    @property
    def span(self) -> tuple[int, int]:
        """[first, end) of its samples in each micro-batch."""
        return self.segment.span(self.device)

    @property
    def samples(self) -> int:
        """How many samples of each micro-batch it takes."""
        first, end = self.span
        return end - first

    @property
    def is_first(self) -> bool:
        """Whether it reads inputs."""
        return self.index == 0

    @property
    def is_last(self) -> bool:
        """Whether it reads labels and computes the loss."""
        return self.index == len(self.lane.segments) - 1

    @property
    def leads(self) -> bool:
        """Whether it speaks for its group where all members hold the same."""
        return self.segment.devices[0] == self.device


def place_of(plan: Plan, device: str) -> Place:
    """The device's place; refused for a device that the plan leaves out."""
    for lane in plan.lanes:
        for index, segment in enumerate(lane.segments):
            if device in segment.devices:
                before = overlaps(lane.segments[index - 1], segment) if index else ()
                more = index + 1 < len(lane.segments)
                after = overlaps(segment, lane.segments[index + 1]) if more else ()
                inflow = tuple(o for o in before if o.target == device)
                return Place(device, lane, index, inflow, tuple(o for o in after if o.source == device))
    raise Refused(f"plan: device {device!r} has no part in it; taking part are {', '.join(plan.devices)}")


def talks_to(plan: Plan, device: str) -> tuple[str, ...]:
    """Every other worker this one may exchange tensors with."""
    place = place_of(plan, device)
    near = [o.source for o in place.inflow] + [o.target for o in place.outflow] + list(place.segment.devices)
    tied = [d for segment in place.lane.segments for d in segment.devices]  # holders of shared weights may be anywhere
    return tuple(d for d in dict.fromkeys(near + tied) if d != device)
