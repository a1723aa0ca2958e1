"""Gates as a picture: a block of the model in every row, its heads beside each other, a cell per micro-batch."""

from itertools import groupby

from fleetune.contracts.plan import FORWARD_ONLY, FULL, SKIP, Gate, Plan
from fleetune.drawing.plan_text import OPERATIONS, operations_text
from fleetune.drawing.svg import WIDTH, canvas, element, label, line, tooltip

_LETTER, _TALL, _TOP, _GAP = 6.6, 18, 26, 6
_STYLES = {FULL: "fill:var(--forward)", FORWARD_ONLY: "fill:var(--forward);opacity:.4", SKIP: "fill:var(--line)"}


def gates_chart(plan: Plan) -> str:
    """Empty where the plan has no gates."""
    if not plan.gates:
        return ""
    blocks: dict[str, list[Gate]] = {}
    for gate in plan.gates:
        blocks.setdefault(gate.subnet.rsplit("#", 1)[0], []).append(gate)
    left = 12 + _LETTER * max(map(len, blocks))
    most = max(map(len, blocks.values()))
    wide = min((WIDTH - left + _GAP) / most, 14.0 * plan.micro_batches + _GAP)
    parts = _legend()
    for row, (block, gates) in enumerate(blocks.items()):
        y = _TOP + _TALL * row
        parts.append(label(0, y + 12, block))
        for column, gate in enumerate(gates):
            parts.append(_cells(gate, left + column * wide, y, wide - _GAP))
    bottom = _TOP + _TALL * len(blocks)
    for column in range(1, most):
        x = left + column * wide - _GAP / 2
        parts.append(line(x, _TOP - 2, x, bottom, class_="rule"))
    return canvas(parts, bottom + 4, "what gates leave of each head in each micro-batch")


def _cells(gate: Gate, x: float, y: float, wide: float) -> str:
    """Equal neighbours are one rectangle; the whole row of a head tells its digits."""
    each, at, cells = wide / len(gate.operations), 0, []
    for operation, run in groupby(gate.operations):
        many = len(list(run))
        place = {"x": x + at * each, "y": float(y), "width": many * each - 0.4, "height": float(_TALL - 3)}
        cells.append(element("rect", style=_STYLES[operation], **place))
        at += many
    return element("g", tooltip(f"{gate.subnet}\n{operations_text(gate.operations)}") + "".join(cells), class_="gate")


def _legend() -> list[str]:
    parts, x = [], float(WIDTH)
    for operation, word in reversed(OPERATIONS.items()):
        x -= _LETTER * len(word) + 8
        parts.append(label(x, 14, word, class_="muted"))
        x -= 16
        parts.append(element("rect", x=x, y=4, width=11, height=11, rx=2, style=_STYLES[operation]))
        x -= 8
    return parts
