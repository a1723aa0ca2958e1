"""Transfers of samples between the devices of two neighbouring segments."""

from dataclasses import dataclass

from fleetune.contracts.plan import Segment


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
