"""Thin and shared links: does anything cross them, and is there as much of the medium as is given away?"""

from collections import defaultdict
from collections.abc import Iterator

from fleetune.contracts.plan import Lane, Plan

_ROUNDING = 1e-6
"""Three thirds are a whole."""


def crossed_by_nothing(plan: Plan) -> Iterator[str]:
    """Links that are said to be used in some way, and over which the plan sends nothing."""
    crossed = set(_crossed(plan))
    for use in plan.links:
        if (use.source, use.target) not in crossed and not use.is_neutral:
            yield (
                f"link {use.source}>{use.target} is to be used in a way of its own, but nothing crosses it; leave it "
                "out, or look whether its ends are the right ones"
            )


def given_away_twice(plan: Plan) -> Iterator[str]:
    """Shares of the links out of a device, or into one, that are more than one medium together."""
    out_of, into = defaultdict[str, float](float), defaultdict[str, float](float)
    for use in plan.links:
        if use.share < 1.0:
            out_of[use.source] += use.share
            into[use.target] += use.share
    for words, sums in (("out of", out_of), ("into", into)):
        for device, total in sums.items():
            if total > 1 + _ROUNDING:
                yield f"links {words} {device} have shares of {total:.4g} together; a medium has 1 to give"


def _crossed(plan: Plan) -> Iterator[tuple[str, str]]:
    for lane in plan.lanes:
        yield from _across_cuts(lane)
        for device in {device for segment in lane.segments for device in segment.devices}:
            if plan.collector:
                yield from ((plan.collector, device), (device, plan.collector))


def _across_cuts(lane: Lane) -> Iterator[tuple[str, str]]:
    for low, high in zip(lane.segments, lane.segments[1:], strict=False):
        for a in low.devices:
            for b in high.devices:
                (first, end), (begin, stop) = low.span(a), high.span(b)
                if min(end, stop) > max(first, begin):
                    yield from ((a, b), (b, a))
