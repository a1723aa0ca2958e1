"""Simulated annealing of single operators, judged by eq. (3) itself; memories may be exceeded on the way, at a price.

For what lies off the line that the other steps think in: skips that reach far, branches side by side, memories so tight
that operators must change places. (Kirkpatrick, Gelatt and Vecchi, 1983.)
"""

import math
from random import Random

import numpy as np

from fleetune.solving.opfence.case import Case, Place
from fleetune.solving.opfence.moves import Moving
from fleetune.solving.opfence.watch import ENDLESS, Watch

HOT, COLD = 0.1, 0.0005
"""Shares of the first cost: a step that costs so much more is taken about every third time."""
PRICE = 4.0
"""Of the first cost, for what is lacking of as much memory as all operators need."""


def annealed(case: Case, place: Place, random: Random, steps: int, watch: Watch = ENDLESS) -> Place | None:
    """The fastest placement on the way that fits, if it is faster than the first or that does not fit.

    steps: fewer where the watch ends them.
    """
    state = Moving(case, place)
    cost_s = state.cost_s()
    best_s, best = (cost_s if state.lack_bytes() <= 0 else math.inf), None
    if cost_s == 0:
        return None
    price = PRICE * cost_s / (float(case.memory_bytes.sum()) or 1.0)
    scale, cooling = cost_s, math.log(COLD / HOT) / steps
    cost_s += price * state.lack_bytes()
    for step in range(steps):
        if watch.over:
            break
        heat = HOT * math.exp(cooling * step) * scale
        undo = _stepped(state, random)
        lack, plain_s = state.lack_bytes(), state.cost_s()
        new_s = plain_s + price * lack
        if new_s <= cost_s or random.random() < math.exp((cost_s - new_s) / heat):
            cost_s = new_s
            if lack <= 0 and plain_s < best_s * (1 - 1e-12):
                best_s, best = plain_s, np.array(state.place, np.int64)
        else:
            for operator, device in reversed(undo):
                state.move(operator, device)
    return best


def _stepped(state: Moving, random: Random) -> list[tuple[int, int]]:
    """Make one random step; what it moved, and from where."""
    case, place = state.case, state.place
    operator = random.randrange(case.operators)
    beside = case.parents[operator] + case.users[operator]
    if beside and random.random() < 0.7:
        other = random.choice(beside)
        to = place[other]
        if to == place[operator]:
            to = random.randrange(case.devices)
    else:
        to = random.randrange(case.devices)
    undo = [(operator, place[operator])]
    if random.random() < 0.3:
        other = random.randrange(case.operators)
        to = place[other]
        undo.append((other, to))
        state.move(other, place[operator])
    state.move(operator, to)
    return undo
