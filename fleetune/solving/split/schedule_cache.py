"""Cache of helper schedules, keyed by helper and bitmask of its clients."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from fleetune.solving.split.instance import Instance
from fleetune.solving.split.schedule import TaskRow
from fleetune.solving.split.single_machine import INFINITE_TIME, MachineSchedule, SingleMachine

NODES = 40
"""Branch-and-bound nodes for a set examined in passing; usually enough for the optimum."""


def clients_of(mask: int) -> list[int]:
    """Return the clients of a mask, ascending."""
    found = []
    while mask:
        low = mask & -mask
        found.append(low.bit_length() - 1)
        mask ^= low
    return found


def mask_of(clients: Iterable[int]) -> int:
    """Return the mask of some clients."""
    mask = 0
    for client in clients:
        mask |= 1 << client
    return mask


class ScheduleCache:
    """Best known schedule and bound of each set of clients on each helper; helpers with equal times share entries."""

    def __init__(self, instance: Instance) -> None:
        self.instance = instance
        self.representative = _representatives(instance)
        """[helper], the first helper with the same times and links."""
        self.machines = [SingleMachine(instance, i) for i in range(instance.helpers)]
        self.allowed = [mask_of(instance.linked[i].nonzero()[0].tolist()) for i in range(instance.helpers)]
        self.memory = instance.client_memory.tolist()
        self.capacity = instance.helper_memory.tolist()
        self.steps = 0
        """Moves that local search has examined."""
        self._found: dict[tuple[int, int], MachineSchedule] = {}
        self._nodes: dict[tuple[int, int], int] = {}
        self._least: dict[tuple[int, int], int] = {}

    @property
    def effort(self) -> int:
        """Machine-independent measure of work, about 3 us per unit."""
        return sum(machine.effort for machine in self.machines) + 3 * self.steps

    def find(self, helper: int, mask: int, nodes: int = NODES) -> MachineSchedule:
        """Return the best known schedule of a set, after a search with at least this many nodes."""
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

    def lower_bound(self, helper: int, mask: int) -> int:
        """Return a lower bound on a set's makespan: its schedule if one was searched for, else Jackson's bound."""
        key = (self.representative[helper], mask)
        known = self._found.get(key)
        if known is not None and self._nodes[key] >= NODES:
            return known.value
        if key not in self._least:
            self._least[key] = self.machines[helper].bound(clients_of(mask)) if mask else 0
        return self._least[key]

    def decide(self, helper: int, mask: int, horizon: int, nodes: int) -> MachineSchedule:
        """Search for a schedule within the horizon, or a proof that there is none; return what is known."""
        found = self.find(helper, mask, 0)
        if found.value <= horizon or found.bound > horizon:
            return found
        clients, machine = clients_of(mask), self.machines[helper]
        self.store(helper, mask, machine.solve(clients, nodes=nodes, below=horizon + 1, enough=horizon))
        return self._found[self.representative[helper], mask]

    def store(self, helper: int, mask: int, found: MachineSchedule) -> None:
        """Store a schedule or bound that another search found."""
        key = (self.representative[helper], mask)
        known = self._found.get(key)
        if known is not None:
            bound = max(known.bound, found.bound)
            better = found if found.value < known.value else known
            found = MachineSchedule(better.value, better.rows, bound)
        self._found[key] = found
        self._nodes.setdefault(key, -1)

    def makespans(self, masks: Sequence[int]) -> list[int]:
        """Return [helper] the makespan of its set."""
        return [self.find(i, mask).value for i, mask in enumerate(masks)]

    def fits(self, masks: Sequence[int]) -> bool:
        """Return True if links and memories allow the assignment."""
        return all(
            mask & ~self.allowed[i] == 0 and sum(self.memory[j] for j in clients_of(mask)) <= self.capacity[i]
            for i, mask in enumerate(masks)
        )

    def rows(self, masks: Sequence[int]) -> list[TaskRow]:
        """Return the schedules of all helpers."""
        return [row for i, mask in enumerate(masks) for row in self.find(i, mask).rows]


def masks_of(instance: Instance, helper: Sequence[int]) -> list[int]:
    """Convert an assignment [client] to masks [helper]."""
    masks = [0] * instance.helpers
    for client, i in enumerate(helper):
        masks[int(i)] |= 1 << client
    return masks


def helper_of(instance: Instance, masks: Sequence[int]) -> list[int]:
    """Convert masks [helper] to an assignment [client]."""
    helper = [0] * instance.clients
    for i, mask in enumerate(masks):
        for client in clients_of(mask):
            helper[client] = i
    return helper


def _representatives(instance: Instance) -> list[int]:
    first: dict[bytes, int] = {}
    alike = []
    for i in range(instance.helpers):
        parts = (
            instance.release,
            instance.forward,
            instance.turnaround,
            instance.backward,
            instance.tail,
            instance.linked,
        )
        key = b"".join(part[i].tobytes() for part in parts) + int(instance.switch_cost[i]).to_bytes(16, "little")
        alike.append(first.setdefault(key, i))
    return alike
