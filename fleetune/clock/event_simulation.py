"""The exact event simulation of any task graph, in plain Python.

`event_loop` implements the same rules compiled, for pipelines only, which planners simulate by the million. Here a
device may have any tasks in any order, each of its own duration, and a transfer may wait for anything and start several
tasks. Both give the same time of a pipeline, to the nanosecond (a test).
"""

from heapq import heappop, heappush
from typing import NamedTuple

_TASK, _PORTS, _ARRIVAL = range(3)


class Task(NamedTuple):
    """One task of a device; a device runs one task at a time."""

    lasts_ns: int
    awaits: int
    """Number of transfers that must arrive before the task may start."""
    sends: tuple[int, ...]
    """Numbers of the transfers that become ready when the task ends."""


class TransferEnd(NamedTuple):
    """A device that sends or receives: how much later a transfer arrives that releases its ports while it computes, or
    while it does not."""

    device: int
    idle_ns: int
    computing_ns: int


class Transfer(NamedTuple):
    """A transfer: it occupies two ports for `holds_ns` and arrives `latency_ns` after it has released them."""

    egress: int
    ingress: int
    """Numbers of the ports; a port serves one transfer at a time."""
    holds_ns: int
    latency_ns: int
    rank: tuple[int, ...]
    """Tie-break among transfers that became ready at the same time."""
    feeds: tuple[int, ...]
    """Numbers of the tasks that wait for it."""
    ends: tuple[TransferEnd, ...] = ()
    """What it waits for at its two ends besides."""


class TaskGraph(NamedTuple):
    """Input of the simulation."""

    tasks: tuple[Task, ...]
    transfers: tuple[Transfer, ...]
    orders: tuple[tuple[int, ...], ...]
    """[device] task numbers in execution order."""
    ready: tuple[int, ...] = ()
    """Numbers of the transfers that are ready at time 0."""


class Trace(NamedTuple):
    """Start and end of every task and transfer; those that never started have no span."""

    end_ns: int
    tasks: dict[int, tuple[int, int]]
    """Task number -> (start, end) in ns."""
    transfers: dict[int, tuple[int, int]]
    """Transfer number -> (start, end) in ns of its time on the ports."""
    deadlocked: dict[int, int]
    """Device -> position in its order where it waits for ever; empty if everything ran."""


def simulate_graph(graph: TaskGraph) -> Trace:
    """Run a task graph until no event is left.

    At each instant all ends are handled, then waiting transfers start in order of (ready time, rank) if both ports are
    free, then free devices start their next task if it is ready.
    """
    simulator = _Simulator(graph)
    simulator.start_transfers(0)
    simulator.start_tasks(0)
    now = 0
    while simulator.events:
        now = simulator.events[0][0]
        while simulator.events and simulator.events[0][0] == now:
            simulator.handle(now, *heappop(simulator.events)[1:])
        simulator.start_transfers(now)
        simulator.start_tasks(now)
    deadlocked = {device: at for device, at in enumerate(simulator.reached) if at < len(graph.orders[device])}
    return Trace(now, simulator.tasks, simulator.transfers, deadlocked)


class _Simulator:
    def __init__(self, graph: TaskGraph) -> None:
        self.graph = graph
        self.events: list[tuple[int, int, int]] = []
        self.waiting = sorted((0, graph.transfers[k].rank, k) for k in graph.ready)
        self.held: set[tuple[str, int]] = set()
        self.missing = [task.awaits for task in graph.tasks]
        self.reached = [0] * len(graph.orders)
        self.computing: set[int] = set()
        self.device = {task: device for device, order in enumerate(graph.orders) for task in order}
        self.tasks: dict[int, tuple[int, int]] = {}
        self.transfers: dict[int, tuple[int, int]] = {}

    def handle(self, now: int, kind: int, which: int) -> None:
        if kind == _TASK:
            self.computing.remove(self.device[which])
            sends = self.graph.tasks[which].sends
            self.waiting += [(now, self.graph.transfers[k].rank, k) for k in sends]
            self.waiting.sort()
        elif kind == _PORTS:
            transfer = self.graph.transfers[which]
            self.held -= _ports(transfer)
            later = (end.computing_ns if end.device in self.computing else end.idle_ns for end in transfer.ends)
            heappush(self.events, (now + transfer.latency_ns + sum(later), _ARRIVAL, which))
        else:
            for task in self.graph.transfers[which].feeds:
                self.missing[task] -= 1

    def start_transfers(self, now: int) -> None:
        blocked = []
        for entry in self.waiting:
            which = entry[-1]
            transfer = self.graph.transfers[which]
            if self.held & _ports(transfer):
                blocked.append(entry)
                continue
            self.held |= _ports(transfer)
            end = now + transfer.holds_ns
            self.transfers[which] = (now, end)
            heappush(self.events, (end, _PORTS, which))
        self.waiting = blocked

    def start_tasks(self, now: int) -> None:
        for device, order in enumerate(self.graph.orders):
            at = self.reached[device]
            if device in self.computing or at == len(order) or self.missing[order[at]]:
                continue
            self.computing.add(device)
            self.reached[device] = at + 1
            end = now + self.graph.tasks[order[at]].lasts_ns
            self.tasks[order[at]] = (now, end)
            heappush(self.events, (end, _TASK, order[at]))


def _ports(transfer: Transfer) -> set[tuple[str, int]]:
    return {("out", transfer.egress), ("in", transfer.ingress)}
