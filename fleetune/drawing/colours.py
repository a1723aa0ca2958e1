"""Which colour stands for what in every picture of a plan: a segment in a plan of one lane, else a lane."""

from fleetune.contracts.plan import Plan
from fleetune.drawing.svg import SEGMENT_COLOURS

SEVERAL = "var(--other)"
"""For what belongs to several of them, or to none."""


def colour(number: int) -> str:
    """The colours repeat."""
    return f"var(--s{number % SEGMENT_COLOURS})"


def colour_of_segment(plan: Plan, lane: int, index: int) -> str:
    """Of a segment by the numbers of lane and segment."""
    return colour(lane if len(plan.lanes) > 1 else index)


def colours_of_devices(plan: Plan) -> dict[str, str]:
    """Of every device that runs something; a helper of several lanes has none of theirs."""
    found: dict[str, set[str]] = {}
    for at, lane in enumerate(plan.lanes):
        for index, segment in enumerate(lane.segments):
            for device in segment.devices:
                found.setdefault(device, set()).add(colour_of_segment(plan, at, index))
    return {device: min(colours) if len(colours) == 1 else SEVERAL for device, colours in found.items()}
