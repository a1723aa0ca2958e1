"""Operators moved one after another between devices that talk to each other, judged by eq. (3) itself.

A chain of moves starts at an operator beside another device's and follows the graph: after it, the operator it read or
is read by on the same device may go the same way. The best length of each chain is kept, so that a whole branch or the
end of a run can cross over though its first step alone makes things worse (as Kernighan and Lin, 1970, exchange nodes).
"""

import numpy as np

from fleetune.solving.opfence.case import Case, Place, added
from fleetune.solving.opfence.graph import Edges
from fleetune.solving.opfence.watch import ENDLESS, Watch

LONGEST = 24
"""Moves of a chain."""
BETTER = 1e-12
"""Relative gain that counts."""


class Moving:
    """A placement whose cost follows single moves in little time; plain numbers, since arrays this small cost more."""

    def __init__(self, case: Case, place: Place) -> None:
        self.case = case
        self.place: list[int] = place.tolist()
        self._flops, self._speed = case.flops.tolist(), case.speed.tolist()
        self._output, self._memory = case.output_bytes.tolist(), case.memory_bytes.tolist()
        self._budget = case.budget_bytes.tolist()
        self._alpha, self._beta = case.alpha.tolist(), case.beta.tolist()
        self.flops = added(case.flops, place, case.devices).tolist()
        self.memory = added(case.memory_bytes, place, case.devices).tolist()
        self.readers: list[dict[int, int]] = [{} for _ in self.place]
        """[operator]: how many of its users each device has."""
        for maker, users in enumerate(case.users):
            for user in users:
                device = self.place[user]
                self.readers[maker][device] = self.readers[maker].get(device, 0) + 1
        self.links: dict[tuple[int, int], list[float]] = {}
        """Transfers and dense bytes of each link in use."""
        for maker, readers in enumerate(self.readers):
            for device in readers:
                self._carry(maker, self.place[maker], device, 1)

    def move(self, operator: int, to: int) -> None:
        """Put an operator on another device."""
        away = self.place[operator]
        self.flops[away] -= self._flops[operator]
        self.flops[to] += self._flops[operator]
        self.memory[away] -= self._memory[operator]
        self.memory[to] += self._memory[operator]
        for maker in self.case.parents[operator]:
            readers, home = self.readers[maker], self.place[maker]
            readers[away] -= 1
            if not readers[away]:
                del readers[away]
                self._carry(maker, home, away, -1)
            if to not in readers:
                self._carry(maker, home, to, 1)
            readers[to] = readers.get(to, 0) + 1
        for device in self.readers[operator]:
            self._carry(operator, away, device, -1)
            self._carry(operator, to, device, 1)
        self.place[operator] = to

    def has_room(self, operator: int, device: int) -> bool:
        """Whether the device can take the operator as well."""
        return bool(self.memory[device] + self._memory[operator] <= self._budget[device])

    def lack_bytes(self) -> float:
        """Of all devices that are short of memory."""
        found: float = sum(max(0.0, held - budget) for held, budget in zip(self.memory, self._budget, strict=True))
        return found

    def cost_s(self) -> float:
        """Eq. (3) as it stands."""
        alpha, beta = self._alpha, self._beta
        carried = [
            (alpha[sender][to] * count, beta[sender][to], size) for (sender, to), (count, size) in self.links.items()
        ]
        receive = [0.0] * self.case.devices
        for (_, to), seconds in zip(self.links, self.case.codec.seconds(carried), strict=True):
            receive[to] += seconds
        compute: list[float] = [flops / speed for flops, speed in zip(self.flops, self._speed, strict=True)]
        slowest: float = max(max(compute), max(receive))
        return sum(compute) + sum(receive) + (self.case.rounds - 1) * slowest

    def _carry(self, maker: int, sender: int, to: int, times: int) -> None:
        """Send an output once more, or once less, over a link."""
        if sender == to:
            return
        link = self.links.setdefault((sender, to), [0.0, 0.0])
        link[0] += times
        link[1] += times * self._output[maker]
        if link[0] == 0:
            del self.links[sender, to]


def moved(case: Case, place: Place, passes: int = 6, watch: Watch = ENDLESS) -> Place:
    """The placement after chains of moves, for as long as they make it faster, at most so many times over, and no
    longer than the watch lets it."""
    state = Moving(case, place)
    current_s = state.cost_s()
    for _ in range(passes):
        before_s = current_s
        for operator in case.order:
            if watch.over:
                break
            for to, up in _beside(state, operator):
                if to != state.place[operator] and not watch.over:
                    current_s = _chain(state, (operator, to), case.parents if up else case.users, current_s)
        if not current_s < before_s * (1 - BETTER):
            break
    return np.array(state.place, np.int64)


def _beside(state: Moving, operator: int) -> list[tuple[int, bool]]:
    """Other devices that the operator is read by (True) or reads from (False)."""
    own = state.place[operator]
    makers = {state.place[maker] for maker in state.case.parents[operator]}
    found = {(device, True) for device in state.readers[operator]} | {(device, False) for device in makers}
    return sorted(pair for pair in found if pair[0] != own)


def _chain(state: Moving, start: tuple[int, int], follow: Edges, current_s: float) -> float:
    """Move an operator to a device, then those on its own device that it leads to; keep the best length.

    start: operator and device. Returns the cost then.
    """
    first, to = start
    away = state.place[first]
    best_s, best, done = current_s, 0, list[int]()
    waiting = [first]
    while waiting and len(done) < LONGEST:
        operator = waiting.pop(0)
        if state.place[operator] != away or not state.has_room(operator, to):
            continue
        state.move(operator, to)
        done.append(operator)
        waiting += [other for other in follow[operator] if state.place[other] == away]
        cost_s = state.cost_s()
        if cost_s < best_s * (1 - BETTER):
            best_s, best = cost_s, len(done)
    for operator in reversed(done[best:]):
        state.move(operator, away)
    return best_s
