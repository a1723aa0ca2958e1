"""Operators moved one after another between devices that talk to each other, judged by eq. (3) itself.

A chain of moves starts at an operator beside another device's and follows the graph: after it, the operator it read or
is read by on the same device may go the same way. The best length of each chain is kept, so that a whole branch or the
end of a run can cross over though its first step alone makes things worse (as Kernighan and Lin, 1970, exchange nodes).

Simulated annealing of single operators, judged by eq. (3) itself; memories may be exceeded on the way, at a price.

For what lies off the line that the other steps think in: skips that reach far, branches side by side, memories so tight
that operators must change places. (Kirkpatrick, Gelatt and Vecchi, 1983.)
"""

import math
from random import Random

import numpy as np

from fleetune.solving.deadline import NO_DEADLINE, Deadline
from fleetune.solving.opfence.graph import Edges
from fleetune.solving.opfence.instance import Instance, Placement, sum_by_group

LONGEST = 24
"""Moves of a chain."""
BETTER = 1e-12
"""Relative gain that counts."""


class IncrementalPlacement:
    """A placement whose cost follows single moves in little time; plain numbers, since arrays this small cost more."""

    def __init__(self, instance: Instance, placement: Placement) -> None:
        self.instance = instance
        self.placement: list[int] = placement.tolist()
        self._flops, self._speed = instance.flops.tolist(), instance.speed.tolist()
        self._output, self._memory = instance.output_bytes.tolist(), instance.memory_bytes.tolist()
        self._budget = instance.budget_bytes.tolist()
        self._alpha, self._beta = instance.alpha.tolist(), instance.beta.tolist()
        self.flops = sum_by_group(instance.flops, placement, instance.devices).tolist()
        self.memory = sum_by_group(instance.memory_bytes, placement, instance.devices).tolist()
        self.readers: list[dict[int, int]] = [{} for _ in self.placement]
        """[operator]: how many of its users each device has."""
        for maker, users in enumerate(instance.users):
            for user in users:
                device = self.placement[user]
                self.readers[maker][device] = self.readers[maker].get(device, 0) + 1
        self.links: dict[tuple[int, int], list[float]] = {}
        """Transfers and dense bytes of each link in use."""
        for maker, readers in enumerate(self.readers):
            for device in readers:
                self._add_transfer(maker, self.placement[maker], device, 1)

    def move(self, operator: int, to: int) -> None:
        """Put an operator on another device."""
        away = self.placement[operator]
        self.flops[away] -= self._flops[operator]
        self.flops[to] += self._flops[operator]
        self.memory[away] -= self._memory[operator]
        self.memory[to] += self._memory[operator]
        for maker in self.instance.parents[operator]:
            readers, home = self.readers[maker], self.placement[maker]
            readers[away] -= 1
            if not readers[away]:
                del readers[away]
                self._add_transfer(maker, home, away, -1)
            if to not in readers:
                self._add_transfer(maker, home, to, 1)
            readers[to] = readers.get(to, 0) + 1
        for device in self.readers[operator]:
            self._add_transfer(operator, away, device, -1)
            self._add_transfer(operator, to, device, 1)
        self.placement[operator] = to

    def has_room(self, operator: int, device: int) -> bool:
        """Whether the device can take the operator as well."""
        return bool(self.memory[device] + self._memory[operator] <= self._budget[device])

    def missing_bytes(self) -> float:
        """Of all devices that are short of memory."""
        found: float = sum(max(0.0, held - budget) for held, budget in zip(self.memory, self._budget, strict=True))
        return found

    def cost_s(self) -> float:
        """Eq. (3) as it stands."""
        alpha, beta = self._alpha, self._beta
        carried = [
            (alpha[sender][to] * count, beta[sender][to], size) for (sender, to), (count, size) in self.links.items()
        ]
        receive = [0.0] * self.instance.devices
        for (_, to), seconds in zip(self.links, self.instance.codec.seconds(carried), strict=True):
            receive[to] += seconds
        compute: list[float] = [flops / speed for flops, speed in zip(self.flops, self._speed, strict=True)]
        slowest: float = max(max(compute), max(receive))
        return sum(compute) + sum(receive) + (self.instance.rounds - 1) * slowest

    def _add_transfer(self, maker: int, sender: int, to: int, times: int) -> None:
        """Send an output once more, or once less, over a link."""
        if sender == to:
            return
        link = self.links.setdefault((sender, to), [0.0, 0.0])
        link[0] += times
        link[1] += times * self._output[maker]
        if link[0] == 0:
            del self.links[sender, to]


def chain_moves(
    instance: Instance, placement: Placement, passes: int = 6, deadline: Deadline = NO_DEADLINE
) -> Placement:
    """The placement after chains of moves, for as long as they make it faster, at most so many times over, and no
    longer than the deadline lets it."""
    state = IncrementalPlacement(instance, placement)
    current_s = state.cost_s()
    for _ in range(passes):
        before_s = current_s
        for operator in instance.order:
            if deadline.expired:
                break
            for to, up in _adjacent_moves(state, operator):
                if to != state.placement[operator] and not deadline.expired:
                    current_s = _move_chain(
                        state, (operator, to), instance.parents if up else instance.users, current_s
                    )
        if not current_s < before_s * (1 - BETTER):
            break
    return np.array(state.placement, np.int64)


def _adjacent_moves(state: IncrementalPlacement, operator: int) -> list[tuple[int, bool]]:
    """Other devices that the operator is read by (True) or reads from (False)."""
    own = state.placement[operator]
    makers = {state.placement[maker] for maker in state.instance.parents[operator]}
    found = {(device, True) for device in state.readers[operator]} | {(device, False) for device in makers}
    return sorted(pair for pair in found if pair[0] != own)


def _move_chain(state: IncrementalPlacement, start: tuple[int, int], follow: Edges, current_s: float) -> float:
    """Move an operator to a device, then those on its own device that it leads to; keep the best length.

    start: operator and device. Returns the cost then.
    """
    first, to = start
    away = state.placement[first]
    best_s, best, done = current_s, 0, list[int]()
    waiting = [first]
    while waiting and len(done) < LONGEST:
        operator = waiting.pop(0)
        if state.placement[operator] != away or not state.has_room(operator, to):
            continue
        state.move(operator, to)
        done.append(operator)
        waiting += [other for other in follow[operator] if state.placement[other] == away]
        cost_s = state.cost_s()
        if cost_s < best_s * (1 - BETTER):
            best_s, best = cost_s, len(done)
    for operator in reversed(done[best:]):
        state.move(operator, away)
    return best_s


HOT, COLD = 0.1, 0.0005
"""Shares of the first cost: a step that costs so much more is taken about every third time."""
PRICE = 4.0
"""Of the first cost, for what is lacking of as much memory as all operators need."""


def anneal(
    instance: Instance, placement: Placement, random: Random, steps: int, deadline: Deadline = NO_DEADLINE
) -> Placement | None:
    """The fastest placement on the way that fits, if it is faster than the first or that does not fit.

    steps: fewer where the deadline ends them.
    """
    state = IncrementalPlacement(instance, placement)
    cost_s = state.cost_s()
    best_s, best = (cost_s if state.missing_bytes() <= 0 else math.inf), None
    if cost_s == 0:
        return None
    price = PRICE * cost_s / (float(instance.memory_bytes.sum()) or 1.0)
    scale, cooling = cost_s, math.log(COLD / HOT) / steps
    cost_s += price * state.missing_bytes()
    for step in range(steps):
        if deadline.expired:
            break
        heat = HOT * math.exp(cooling * step) * scale
        undo = _random_step(state, random)
        lack, plain_s = state.missing_bytes(), state.cost_s()
        new_s = plain_s + price * lack
        if new_s <= cost_s or random.random() < math.exp((cost_s - new_s) / heat):
            cost_s = new_s
            if lack <= 0 and plain_s < best_s * (1 - 1e-12):
                best_s, best = plain_s, np.array(state.placement, np.int64)
        else:
            for operator, device in reversed(undo):
                state.move(operator, device)
    return best


def _random_step(state: IncrementalPlacement, random: Random) -> list[tuple[int, int]]:
    """Make one random step; what it moved, and from where."""
    instance, placement = state.instance, state.placement
    operator = random.randrange(instance.operators)
    beside = instance.parents[operator] + instance.users[operator]
    if beside and random.random() < 0.7:
        other = random.choice(beside)
        to = placement[other]
        if to == placement[operator]:
            to = random.randrange(instance.devices)
    else:
        to = random.randrange(instance.devices)
    undo = [(operator, placement[operator])]
    if random.random() < 0.3:
        other = random.randrange(instance.operators)
        to = placement[other]
        undo.append((other, to))
        state.move(other, placement[operator])
    state.move(operator, to)
    return undo
