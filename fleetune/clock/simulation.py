"""The exact event simulation: one round of a pipeline, on whole nanoseconds.

A device runs its tasks one at a time in order. A forward starts when the inputs of all its samples have arrived, a
backward when the gradients of all its samples have (on the last stage only the order binds). A transfer holds the
sender's egress and the receiver's ingress, and has arrived a latency after it let go of both. At each instant

1. everything that ends then is handled;
2. the waiting transfers are looked through once, in order of (time they became ready, micro-batch, lower of the two
   stages joined, sender's place, receiver's place); each whose two ports are free starts, a blocked one holds nothing
   and may be overtaken;
3. free devices start their next task if it is ready;

and what these end at the same instant is handled next in the same way. When all members of a stage have ended, a
stage of several runs a ring all-reduce, which holds no port. The round ends when everything has.
"""

import heapq
from bisect import insort
from typing import NamedTuple

from fleetune.clock.pipeline import Pipeline, Tables, tables

_TASK, _PORTS, _ARRIVAL = 0, 1, 2


class Task(NamedTuple):
    """A forward (F) or backward (B) of a member."""

    stage: int
    place: int
    letter: str
    micro_batch: int
    start_ns: int
    end_ns: int


class Transfer(NamedTuple):
    """Bytes between members of neighbouring stages; `letter` and `micro_batch` are those of the task that sent them."""

    sender: tuple[int, int]
    """Stage and place."""
    receiver: tuple[int, int]
    letter: str
    micro_batch: int
    bytes: int
    start_ns: int
    end_ns: int
    """When the ports are free again."""
    arrival_ns: int


class Reduce(NamedTuple):
    """The all-reduce of a stage's gradients."""

    stage: int
    start_ns: int
    end_ns: int


class Simulation(NamedTuple):
    """One round. `stuck` is empty, or names (stage, place, position in its order) of every action that waits for ever:
    then the other fields tell how far the round came."""

    round_ns: int
    tasks: tuple[Task, ...]
    transfers: tuple[Transfer, ...]
    reduces: tuple[Reduce, ...]
    stuck: tuple[tuple[int, int, int], ...] = ()


def simulate(pipeline: Pipeline) -> Simulation:
    """Play one round; rows come in the order in which things started."""
    run = _Run(tables(pipeline))
    run.play()
    reduces = tuple(_reduces(run))
    stuck = tuple(
        (*run.tables.seats[g], run.position[g])
        for g in range(len(run.tables.seats))
        if run.position[g] < len(run.tables.orders[g])
    )
    ends = [run.now, *(reduce.end_ns for reduce in reduces)]
    return Simulation(max(ends), tuple(run.tasks), tuple(run.transfers), () if stuck else reduces, stuck)


def _reduces(run: "_Run") -> list[Reduce]:
    """Each stage of several members, from the end of its slowest one."""
    ready = [0] * len(run.tables.reduce_ns)
    members = [0] * len(run.tables.reduce_ns)
    for task in run.tasks:
        ready[task.stage] = max(ready[task.stage], task.end_ns)
    for stage, _ in run.tables.seats:
        members[stage] += 1
    lasting = run.tables.reduce_ns
    return [Reduce(p, ready[p], ready[p] + lasting[p]) for p in range(len(lasting)) if members[p] > 1]


class _Run:
    """The state of a round that is being played."""

    def __init__(self, flat: Tables) -> None:
        count = len(flat.seats)
        self.tables = flat
        self.now = 0
        self.events: list[tuple[int, int, int, int]] = []
        """(time, kind, member or route, micro-batch)"""
        self.waiting: list[tuple[int, int, tuple[int, int, int], int]] = []
        """(ready, micro-batch, rank, route), sorted"""
        self.position = [0] * count
        """Of every member: the next action of its order; the running one counts as done."""
        self.computing = [False] * count
        self.egress_held = [False] * count
        self.ingress_held = [False] * count
        self.arrived: dict[tuple[int, str, int], int] = {}
        self.tasks: list[Task] = []
        self.transfers: list[Transfer] = []

    def play(self) -> None:
        """Instant after instant until nothing is left to happen."""
        self.start_tasks()
        while self.events:
            self.now = self.events[0][0]
            ended = []
            while self.events and self.events[0][0] == self.now:
                ended.append(heapq.heappop(self.events))
            self.handle(ended)
            self.start_transfers()
            self.start_tasks()

    def handle(self, ended: list[tuple[int, int, int, int]]) -> None:
        """Free devices and ports, count arrivals, queue what the ended tasks have to send."""
        for _, kind, which, micro_batch in ended:
            if kind == _TASK:
                self.computing[which] = False
                letter = self.tables.orders[which][self.position[which] - 1][0]
                for index in self.tables.sends.get((which, letter), ()):
                    insort(self.waiting, (self.now, micro_batch, self.tables.routes[index].rank, index))
            elif kind == _PORTS:
                route = self.tables.routes[which]
                self.egress_held[route.sender] = False
                self.ingress_held[route.receiver] = False
            else:
                route = self.tables.routes[which]
                key = (route.receiver, route.letter, micro_batch)
                self.arrived[key] = self.arrived.get(key, 0) + 1

    def start_transfers(self) -> None:
        """One look through the waiting list."""
        if not self.waiting:
            return
        still = []
        for entry in self.waiting:
            micro_batch, index = entry[1], entry[3]
            route = self.tables.routes[index]
            if self.egress_held[route.sender] or self.ingress_held[route.receiver]:
                still.append(entry)
                continue
            self.egress_held[route.sender] = self.ingress_held[route.receiver] = True
            end = self.now + route.duration_ns
            arrival = end + route.latency_ns
            heapq.heappush(self.events, (end, _PORTS, index, micro_batch))
            heapq.heappush(self.events, (arrival, _ARRIVAL, index, micro_batch))
            ends = self.tables.seats[route.sender], self.tables.seats[route.receiver]
            self.transfers.append(Transfer(*ends, route.letter, micro_batch, route.bytes, self.now, end, arrival))
        self.waiting = still

    def start_tasks(self) -> None:
        """Every free device whose next action has all it needs."""
        for member, order in enumerate(self.tables.orders):
            position = self.position[member]
            if self.computing[member] or position == len(order):
                continue
            letter, micro_batch = order[position]
            if self.arrived.get((member, letter, micro_batch), 0) < self.tables.awaits.get((member, letter), 0):
                continue
            end = self.now + self.tables.durations[member][letter]
            self.computing[member] = True
            self.position[member] = position + 1
            heapq.heappush(self.events, (end, _TASK, member, micro_batch))
            self.tasks.append(Task(*self.tables.seats[member], letter, micro_batch, self.now, end))
