"""Who sends which samples to whom when a value crosses from one group of devices to the next."""

from dataclasses import dataclass

from fleetune.contracts.plan import Segment


@dataclass(frozen=True, slots=True)
class Overlap:
    """Samples [first, end) of a micro-batch that both `source` and `target` hold."""

    source: str
    target: str
    first: int
    end: int
    carries_shared: bool
    """Whether values that are the same for all samples travel here (once per target)."""


def overlaps(before: Segment, after: Segment) -> tuple[Overlap, ...]:
    """Every transfer between two neighbouring segments, in the order of senders, then receivers."""
    found: list[Overlap] = []
    served: set[str] = set()
    for source in before.devices:
        a, b = before.span(source)
        for target in after.devices:
            x, y = after.span(target)
            if max(a, x) < min(b, y):
                found.append(Overlap(source, target, max(a, x), min(b, y), target not in served))
                served.add(target)
    return tuple(found)
