"""What is known of every set of clients that a search has put on a helper; a set is the bits of an integer."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from fleetune.solving.split.instance import Instance
from fleetune.solving.split.schedule import Row
from fleetune.solving.split.single_machine import INFINITE_TIME, MachineSchedule, SingleMachine

NODES = 40
"""Of branch and bound for a set looked at in passing: its plan is the least one more often than not."""


def clients_of(mask: int) -> list[int]:
    """The clients of a set, ascending."""
    found = []
    while mask:
        low = mask & -mask
        found.append(low.bit_length() - 1)
        mask ^= low
    return found


def mask_of(clients: Iterable[int]) -> int:
    """The set of some clients."""
    mask = 0
    for client in clients:
        mask |= 1 << client
    return mask


class ScheduleCache:
    """Schedules of helpers, each worked out once; helpers with the same times share them."""

    def __init__(self, instance: Instance) -> None:
        self.instance = instance
        self.representative = _first_alike(instance)
        """[helper] The first helper with the same times and links."""
        self.machines = [SingleMachine(instance, i) for i in range(instance.helpers)]
        self.allowed = [mask_of(instance.linked[i].nonzero()[0].tolist()) for i in range(instance.helpers)]
        self.memory = instance.client_memory.tolist()
        self.capacity = instance.helper_memory.tolist()
        self.steps = 0
        """Moves that local search looked at."""
        self._found: dict[tuple[int, int], MachineSchedule] = {}
        self._nodes: dict[tuple[int, int], int] = {}
        self._least: dict[tuple[int, int], int] = {}

    @property
    def effort(self) -> int:
        """The measure of work that does not depend on the machine: some 3 us each."""
        return sum(machine.effort for machine in self.machines) + 3 * self.steps

    def find(self, helper: int, mask: int, nodes: int = NODES) -> MachineSchedule:
        """The best schedule known of a set, looked for with so many nodes unless it was before."""
        key = (self.representative[helper], mask)
        known = self._found.get(key)
        if known is not None and (known.proven or self._nodes[key] >= nodes):
            return known
        clients = clients_of(mask)
        machine = self.machines[helper]
        below = INFINITE_TIME if known is None else known.value
        found = machine.solve(clients, nodes=nodes, below=below)
        if known is not None:
            bound = max(known.bound, found.bound)
            found = (
                MachineSchedule(known.value, known.rows, bound)
                if found.value >= INFINITE_TIME
                else found._replace(bound=bound)
            )
        self._found[key], self._nodes[key] = found, nodes
        return found

    def least(self, helper: int, mask: int) -> int:
        """What a set takes at least: its schedule if one was looked for, else Jackson's bound."""
        key = (self.representative[helper], mask)
        known = self._found.get(key)
        if known is not None and self._nodes[key] >= NODES:
            return known.value
        if key not in self._least:
            self._least[key] = self.machines[helper].bound(clients_of(mask)) if mask else 0
        return self._least[key]

    def decide(self, helper: int, mask: int, horizon: int, nodes: int) -> MachineSchedule:
        """What is known of a set once a schedule within the horizon was looked for, or proof that there is none."""
        found = self.find(helper, mask, 0)
        if found.value <= horizon or found.bound > horizon:
            return found
        clients, machine = clients_of(mask), self.machines[helper]
        self.learn(helper, mask, machine.solve(clients, nodes=nodes, below=horizon + 1, enough=horizon))
        return self._found[self.representative[helper], mask]

    def learn(self, helper: int, mask: int, found: MachineSchedule) -> None:
        """Take up a schedule, or a bound, that something else found."""
        key = (self.representative[helper], mask)
        known = self._found.get(key)
        if known is not None:
            bound = max(known.bound, found.bound)
            better = found if found.value < known.value else known
            found = MachineSchedule(better.value, better.rows, bound)
        self._found[key] = found
        self._nodes.setdefault(key, -1)

    def makespans(self, masks: Sequence[int]) -> list[int]:
        """Makespan of every helper with its set."""
        return [self.find(i, mask).value for i, mask in enumerate(masks)]

    def fits(self, masks: Sequence[int]) -> bool:
        """Whether links and memories allow it."""
        return all(
            mask & ~self.allowed[i] == 0 and sum(self.memory[j] for j in clients_of(mask)) <= self.capacity[i]
            for i, mask in enumerate(masks)
        )

    def rows(self, masks: Sequence[int]) -> list[Row]:
        """The schedules of all helpers."""
        return [row for i, mask in enumerate(masks) for row in self.find(i, mask).rows]


def masks_of(instance: Instance, helper: Sequence[int]) -> list[int]:
    """Of each helper the set of its clients, from the helper of each client."""
    masks = [0] * instance.helpers
    for client, i in enumerate(helper):
        masks[int(i)] |= 1 << client
    return masks


def helper_of(instance: Instance, masks: Sequence[int]) -> list[int]:
    """And back."""
    helper = [0] * instance.clients
    for i, mask in enumerate(masks):
        for client in clients_of(mask):
            helper[client] = i
    return helper


def _first_alike(instance: Instance) -> list[int]:
    first: dict[bytes, int] = {}
    alike = []
    for i in range(instance.helpers):
        parts = (
            instance.release,
            instance.forward,
            instance.between,
            instance.backward,
            instance.tail,
            instance.linked,
        )
        key = b"".join(part[i].tobytes() for part in parts) + int(instance.switch_cost[i]).to_bytes(16, "little")
        alike.append(first.setdefault(key, i))
    return alike
