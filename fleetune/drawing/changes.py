"""What a training has changed in its plan: blocks that moved between devices, and gates that were chosen anew."""

from collections.abc import Sequence
from itertools import groupby

from fleetune.contracts.metrics import RoundMetrics
from fleetune.contracts.plan import Plan
from fleetune.drawing.svg import WIDTH, axis_ticks, bar, canvas, colour_of_segment, label, shortened
from fleetune.drawing.text import trained_text
from fleetune.program.in_force import after_rounds, moved, permutes

_ROW, _TOP, _BOTTOM, _LETTER_WIDTH = 24, 6, 24, 6.6


def moves_chart(plan: Plan, rounds: Sequence[RoundMetrics]) -> str:
    """Draw which block each lane's device trained in each round, in the colour of the lane that had it first; empty
    where no block has moved."""
    trained = _trained_in(plan, rounds)
    if not any(len(set(blocks)) > 1 for blocks in trained):
        return ""
    first = {lane.segments[0].trains: at for at, lane in enumerate(plan.lanes)}
    names = [shortened(lane.segments[0].shares[0].device) for lane in plan.lanes]
    left = 12 + _LETTER_WIDTH * max(map(len, names))
    scale = (WIDTH - left - 12) / len(rounds)
    parts = []
    for at, (lane, blocks) in enumerate(zip(plan.lanes, trained, strict=True)):
        y = _TOP + _ROW * at
        parts.append(label(0, y + 14, names[at]))
        begin = 0
        for block, run in groupby(blocks):
            many = len(list(run))
            text = trained_text(moved(plan, {lane.name: block}).lanes[at].segments[0])
            device = lane.segments[0].shares[0].device
            hint = f"{device} trains {text} in rounds {rounds[begin].round} to {rounds[begin + many - 1].round}"
            style = f"fill:{colour_of_segment(plan, first[block], 0)}"
            parts.append(bar(left + begin * scale, y, (many * scale - 1, _ROW - 5), hint, class_="bar", style=style))
            if many * scale > _LETTER_WIDTH * len(text) + 8:
                place = left + (begin + many / 2) * scale
                parts.append(label(place, y + 14, text, class_="on", text_anchor="middle", pointer_events="none"))
            begin += many
    bottom = _TOP + _ROW * len(plan.lanes)
    parts.append(label(0, bottom + 16, "round", class_="muted"))
    for tick in axis_ticks(len(rounds)):
        if tick == int(tick):
            text = str(rounds[0].round + int(tick))
            parts.append(label(left + tick * scale, bottom + 16, text, class_="muted", text_anchor="middle"))
    return canvas(parts, bottom + _BOTTOM, "blocks that moved, round by round")


def last_refresh(plan: Plan, rounds: Sequence[RoundMetrics], gates_from: int = 0) -> tuple[int, Plan] | None:
    """Return the first round with the gates that were chosen last, and the plan with them; None if none were.

    No round had what the last one has chosen. gates_from: the first round whose choices are of this plan.
    """
    scored = [each for each in rounds[:-1] if each.gates and each.round >= gates_from]
    return (scored[-1].round + 1, after_rounds(plan, scored)) if scored and plan.gates else None


def _trained_in(plan: Plan, rounds: Sequence[RoundMetrics]) -> list[list[tuple[str, ...]]]:
    """[lane][round] the units that a lane trained; what another plan has moved is passed over."""
    found: list[list[tuple[str, ...]]] = [[] for _ in plan.lanes]
    for each in rounds:
        for blocks, lane in zip(found, plan.lanes, strict=True):
            blocks.append(lane.segments[0].trains)
        if permutes(plan, each.moves):
            plan = moved(plan, each.moves)
    return found
