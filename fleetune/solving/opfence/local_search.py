"""Local search over single operators with the exact cost of eq. (3): chains of moves, and simulated annealing.

A chain starts at an operator next to another device's and follows the graph: the operators that it reads or that read
it on the same device may move the same way. The best length of each chain is kept, so that a whole branch or the end of
a run can move even if the first step alone is worse (as Kernighan and Lin, 1970, exchange nodes).

Simulated annealing (Kirkpatrick, Gelatt and Vecchi, 1983) accepts placements that exceed memories, at a penalty. It
reaches what partitions of a linear order do not: long skips, parallel branches, and memories so tight that operators
must be swapped.
"""

import math
from random import Random

import numpy as np

from fleetune.solving.limits import NO_DEADLINE, Deadline
from fleetune.solving.opfence.graph import Edges
from fleetune.solving.opfence.instance import MIN_GAIN, Instance, Placement, sum_by_group

MAX_CHAIN_MOVES = 24
"""Moves per chain."""


class IncrementalPlacement:
    """A placement with incremental cost. It uses plain numbers, because arrays this small are slower."""

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
        """[operator], number of its users per device."""
        for maker, users in enumerate(instance.users):
            for user in users:
                device = self.placement[user]
                self.readers[maker][device] = self.readers[maker].get(device, 0) + 1
        self.links: dict[tuple[int, int], list[float]] = {}
        """Number of transfers and dense bytes of each link in use."""
        for maker, readers in enumerate(self.readers):
            for device in readers:
                self._add_transfer(maker, self.placement[maker], device, 1)

    def move(self, operator: int, to: int) -> None:
        """Move an operator to another device."""
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
        """Return True if the device has memory for the operator too."""
        return bool(self.memory[device] + self._memory[operator] <= self._budget[device])

    def missing_bytes(self) -> float:
        """Return the memory that devices lack, summed."""
        found: float = sum(max(0.0, held - budget) for held, budget in zip(self.memory, self._budget, strict=True))
        return found

    def cost_s(self) -> float:
        """Return the time by eq. (3)."""
        alpha, beta = self._alpha, self._beta
        carried = [
            (alpha[sender][to] * count, beta[sender][to], size) for (sender, to), (count, size) in self.links.items()
        ]
        receive = [0.0] * self.instance.devices
        for (_, to), seconds in zip(self.links, self.instance.codec.link_seconds(carried), strict=True):
            receive[to] += seconds
        compute: list[float] = [flops / speed for flops, speed in zip(self.flops, self._speed, strict=True)]
        slowest: float = max(max(compute), max(receive))
        return sum(compute) + sum(receive) + (self.instance.micro_batches - 1) * slowest

    def _add_transfer(self, maker: int, sender: int, to: int, times: int) -> None:
        """Add (1) or remove (-1) the transfer of an output over a link."""
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
    """Apply chains of moves while they are faster, for at most `passes` passes and until the deadline."""
    state = IncrementalPlacement(instance, placement)
    current_s = state.cost_s()
    for _ in range(passes):
        before_s = current_s
        for operator in instance.order:
            if deadline.expired:
                break
            for to, up in _adjacent_moves(state, operator):
                if to != state.placement[operator] and not deadline.expired:
                    follow = instance.parents if up else instance.users
                    current_s = _move_chain(state, operator, to, follow, current_s)
        if not current_s < before_s * (1 - MIN_GAIN):
            break
    return np.array(state.placement, np.int64)


def _adjacent_moves(state: IncrementalPlacement, operator: int) -> list[tuple[int, bool]]:
    """Return devices that read the operator (True) or that it reads from (False)."""
    own = state.placement[operator]
    makers = {state.placement[maker] for maker in state.instance.parents[operator]}
    found = {(device, True) for device in state.readers[operator]} | {(device, False) for device in makers}
    return sorted(pair for pair in found if pair[0] != own)


def _move_chain(state: IncrementalPlacement, first: int, to: int, follow: Edges, current_s: float) -> float:
    """Move an operator, then its neighbours on the same device, to device `to`; keep the best prefix of these moves.

    follow: [operator], the neighbours that may move next. Returns the cost after the moves that are kept.
    """
    away = state.placement[first]
    best_s, best, done = current_s, 0, list[int]()
    waiting = [first]
    while waiting and len(done) < MAX_CHAIN_MOVES:
        operator = waiting.pop(0)
        if state.placement[operator] != away or not state.has_room(operator, to):
            continue
        state.move(operator, to)
        done.append(operator)
        waiting += [other for other in follow[operator] if state.placement[other] == away]
        cost_s = state.cost_s()
        if cost_s < best_s * (1 - MIN_GAIN):
            best_s, best = cost_s, len(done)
    for operator in reversed(done[best:]):
        state.move(operator, away)
    return best_s


START_TEMPERATURE, END_TEMPERATURE = 0.1, 0.0005
"""Start and end temperature, relative to the first cost: a step of that loss is accepted every third time."""
MEMORY_PENALTY = 4.0
"""Penalty for lacking all memory that operators need, relative to the first cost."""


def anneal(
    instance: Instance, placement: Placement, random: Random, steps: int, deadline: Deadline = NO_DEADLINE
) -> Placement | None:
    """Return the fastest placement that fits among those visited, if it beats a start that fits; else None.

    steps: fewer if the deadline expires.
    """
    state = IncrementalPlacement(instance, placement)
    cost_s = state.cost_s()
    best_s, best = (cost_s if state.missing_bytes() <= 0 else math.inf), None
    if cost_s == 0:
        return None
    penalty = MEMORY_PENALTY * cost_s / (float(instance.memory_bytes.sum()) or 1.0)
    scale, cooling = cost_s, math.log(END_TEMPERATURE / START_TEMPERATURE) / steps
    cost_s += penalty * state.missing_bytes()
    for step in range(steps):
        if deadline.expired:
            break
        temperature = START_TEMPERATURE * math.exp(cooling * step) * scale
        undo = _random_step(state, random)
        lack, plain_s = state.missing_bytes(), state.cost_s()
        new_s = plain_s + penalty * lack
        if new_s <= cost_s or random.random() < math.exp((cost_s - new_s) / temperature):
            cost_s = new_s
            if lack <= 0 and plain_s < best_s * (1 - MIN_GAIN):
                best_s, best = plain_s, np.array(state.placement, np.int64)
        else:
            for operator, device in reversed(undo):
                state.move(operator, device)
    return best


def _random_step(state: IncrementalPlacement, random: Random) -> list[tuple[int, int]]:
    """Make one random step; return the moved operators and their previous devices."""
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
