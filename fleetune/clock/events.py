"""The rules of the exact event simulation for any work of devices and links; in plain Python, since few ask it.

`engine` plays the same rules compiled, for chains of stages only, as planners ask about millions of those. Here a
device has any tasks in any order, of several lanes and segments, each of its own length, and a transfer may wait for
anything and let several tasks start. On chains both give the same story, to the nanosecond (a test).
"""

from heapq import heappop, heappush
from typing import NamedTuple

_TASK, _PORTS, _ARRIVAL = range(3)


class Task(NamedTuple):
    """Work of a device, which does one at a time."""

    lasts_ns: int
    awaits: int
    """Transfers that must have arrived before it may start."""
    sends: tuple[int, ...]
    """Transfers that it makes ready."""


class Transfer(NamedTuple):
    """Bytes that hold two ports and arrive a latency after they let go."""

    egress: int
    ingress: int
    """Ports, by any numbers: one transfer at a time holds each."""
    holds_ns: int
    latency_ns: int
    rank: tuple[int, ...]
    """Order among those that became ready at the same time."""
    feeds: tuple[int, ...]
    """Tasks that await it."""


class Work(NamedTuple):
    """All that decides how long it takes."""

    tasks: tuple[Task, ...]
    transfers: tuple[Transfer, ...]
    orders: tuple[tuple[int, ...], ...]
    """[device] Tasks in the order in which they are done."""
    ready: tuple[int, ...] = ()
    """Transfers that may start at once."""


class Story(NamedTuple):
    """What happened when. Tasks and transfers that never started have no span."""

    end_ns: int
    tasks: dict[int, tuple[int, int]]
    """Task -> [start, end) in ns."""
    transfers: dict[int, tuple[int, int]]
    """Transfer -> [start, end) of the time for which it holds its ports."""
    waiting: dict[int, int]
    """Device -> position in its order at which it waits for ever; empty when all was done."""


def play(work: Work) -> Story:
    """Instant after instant: what ends is handled; waiting transfers are looked through once, in order of (ready,
    rank), and each whose ports are free starts; free devices start their next task if it is ready."""
    world = _World(work)
    world.start_transfers(0)
    world.start_tasks(0)
    now = 0
    while world.events:
        now = world.events[0][0]
        while world.events and world.events[0][0] == now:
            world.handle(now, *heappop(world.events)[1:])
        world.start_transfers(now)
        world.start_tasks(now)
    reached = {device: at for device, at in enumerate(world.reached) if at < len(work.orders[device])}
    return Story(now, world.tasks, world.transfers, reached)


class _World:
    def __init__(self, work: Work) -> None:
        self.work = work
        self.events: list[tuple[int, int, int]] = []
        self.waiting = sorted((0, work.transfers[k].rank, k) for k in work.ready)
        self.held: set[tuple[str, int]] = set()
        self.missing = [task.awaits for task in work.tasks]
        self.reached = [0] * len(work.orders)
        self.computing: set[int] = set()
        self.device = {task: device for device, order in enumerate(work.orders) for task in order}
        self.tasks: dict[int, tuple[int, int]] = {}
        self.transfers: dict[int, tuple[int, int]] = {}

    def handle(self, now: int, kind: int, which: int) -> None:
        if kind == _TASK:
            self.computing.remove(self.device[which])
            sends = self.work.tasks[which].sends
            self.waiting += [(now, self.work.transfers[k].rank, k) for k in sends]
            self.waiting.sort()
        elif kind == _PORTS:
            self.held -= _ports(self.work.transfers[which])
        else:
            for task in self.work.transfers[which].feeds:
                self.missing[task] -= 1

    def start_transfers(self, now: int) -> None:
        blocked = []
        for entry in self.waiting:
            which = entry[-1]
            transfer = self.work.transfers[which]
            if self.held & _ports(transfer):
                blocked.append(entry)
                continue
            self.held |= _ports(transfer)
            end = now + transfer.holds_ns
            self.transfers[which] = (now, end)
            heappush(self.events, (end, _PORTS, which))
            heappush(self.events, (end + transfer.latency_ns, _ARRIVAL, which))
        self.waiting = blocked

    def start_tasks(self, now: int) -> None:
        for device, order in enumerate(self.work.orders):
            at = self.reached[device]
            if device in self.computing or at == len(order) or self.missing[order[at]]:
                continue
            self.computing.add(device)
            self.reached[device] = at + 1
            end = now + self.work.tasks[order[at]].lasts_ns
            self.tasks[order[at]] = (now, end)
            heappush(self.events, (end, _TASK, order[at]))


def _ports(transfer: Transfer) -> set[tuple[str, int]]:
    return {("out", transfer.egress), ("in", transfer.ingress)}
