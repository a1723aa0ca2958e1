"""The event loop of the exact simulation, compiled: it sees only arrays, and reuses their memory between rounds.

Members (devices of stages) are numbered through all stages; a task of member g is coded as 2 · micro-batch + letter
(0 forward, 1 backward); a route is what one member sends to one member of a neighbouring stage for every micro-batch.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fleetune.compiled import compiled, inner

Ints = NDArray[np.int64]
_TASK, _PORTS, _ARRIVAL, _BOTH = 0, 1, 2, 3


class Tracks(NamedTuple):
    """What is played; arrays may be longer than what they hold, `used` says how much is used."""

    used: Ints
    """Members, routes, micro-batches, stages."""
    stage: Ints
    """[member]"""
    length: Ints
    """[member] tasks in its order."""
    order: Ints
    """[member, position] coded task."""
    duration: Ints
    """[member, letter] ns."""
    awaits: Ints
    """[member, letter] arrivals a task waits for, per micro-batch."""
    sender: Ints
    """[route]"""
    receiver: Ints
    """[route]"""
    letter: Ints
    """[route]"""
    rank: Ints
    """[route] breaks ties: orders by lower of the two stages joined, sender's place, receiver's place."""
    holds: Ints
    """[route] ns for which both ports are held."""
    latency: Ints
    """[route] ns"""
    bytes: Ints
    """[route]"""
    first_route: Ints
    """[2 · member + letter] of the routes that a task of this letter feeds, which stand together; and one more."""


class Desk(NamedTuple):
    """Memory of the loop, and after it the story of the round."""

    sizes: Ints
    """Events, waiting transfers, started tasks, started transfers."""
    event_time: Ints
    event_code: Ints
    waiting: Ints
    """[slot, 4]: ready, micro-batch, rank, route."""
    position: Ints
    computing: Ints
    egress: Ints
    ingress: Ints
    arrived: Ints
    """[member, coded task]"""
    task: Ints
    """[started, 3]: member, position, start ns."""
    transfer: Ints
    """[started, 3]: route, micro-batch, start ns."""
    ended: Ints
    """[stage] ns at which its last task ended."""


def new_tracks(members: int, micro_batches: int, stages: int) -> Tracks:
    """Room for that many; between two neighbouring stages there are fewer routes each way than members in both."""
    routes = 4 * members
    return Tracks(
        used=np.array([members, 0, micro_batches, stages]),
        stage=np.zeros(members, np.int64),
        length=np.zeros(members, np.int64),
        order=np.zeros((members, 2 * micro_batches), np.int64),
        duration=np.zeros((members, 2), np.int64),
        awaits=np.zeros((members, 2), np.int64),
        sender=np.zeros(routes, np.int64),
        receiver=np.zeros(routes, np.int64),
        letter=np.zeros(routes, np.int64),
        rank=np.zeros(routes, np.int64),
        holds=np.zeros(routes, np.int64),
        latency=np.zeros(routes, np.int64),
        bytes=np.zeros(routes, np.int64),
        first_route=np.zeros(2 * members + 1, np.int64),
    )


def new_desk(members: int, micro_batches: int, stages: int) -> Desk:
    """Room for the same."""
    routes = 4 * members
    tasks, transfers = 2 * members * micro_batches, routes * micro_batches
    return Desk(
        sizes=np.zeros(4, np.int64),
        event_time=np.zeros(members + 2 * transfers + 1, np.int64),
        event_code=np.zeros(members + 2 * transfers + 1, np.int64),
        waiting=np.zeros((transfers + 1, 4), np.int64),
        position=np.zeros(members, np.int64),
        computing=np.zeros(members, np.int64),
        egress=np.zeros(members, np.int64),
        ingress=np.zeros(members, np.int64),
        arrived=np.zeros((members, 2 * micro_batches), np.int64),
        task=np.zeros((tasks, 3), np.int64),
        transfer=np.zeros((transfers, 3), np.int64),
        ended=np.zeros(stages, np.int64),
    )


@compiled
def play(tracks: Tracks, desk: Desk) -> int:
    """Instant after instant until nothing is left to happen; the ns of the last one. `desk.position` tells who came
    how far: below `tracks.length` waits for ever."""
    members = tracks.used[0]
    _clear(tracks, desk)
    now = desk.ended[0]  # 0
    _start_tasks(tracks, desk, now, members)
    while desk.sizes[0] > 0:
        now = desk.event_time[0]
        while desk.sizes[0] > 0 and desk.event_time[0] == now:
            _handle(tracks, desk, now, _pop(desk))
        if desk.sizes[1] > 0:
            _start_transfers(tracks, desk, now)
        _start_tasks(tracks, desk, now, members)
    return int(now)


@inner
def _clear(tracks: Tracks, desk: Desk) -> None:
    for k in range(4):
        desk.sizes[k] = 0
    for g in range(tracks.used[0]):
        desk.position[g] = desk.computing[g] = desk.egress[g] = desk.ingress[g] = 0
        for code in range(2 * tracks.used[2]):
            desk.arrived[g, code] = 0
    for p in range(tracks.used[3]):
        desk.ended[p] = 0


@inner
def _handle(tracks: Tracks, desk: Desk, now: int, code: int) -> None:
    """Free devices and ports, count arrivals, queue what an ended task has to send."""
    kind, rest = code % 4, code // 4
    micro_batches = tracks.used[2]
    which, m = rest // micro_batches, rest % micro_batches
    if kind == _TASK:
        desk.computing[which] = 0
        desk.ended[tracks.stage[which]] = now
        letter = tracks.order[which, desk.position[which] - 1] % 2
        slot = 2 * which + letter
        for r in range(tracks.first_route[slot], tracks.first_route[slot + 1]):
            _queue(desk, now, m, tracks.rank[r], r)
        return
    if kind != _ARRIVAL:
        desk.egress[tracks.sender[which]] = 0
        desk.ingress[tracks.receiver[which]] = 0
    if kind != _PORTS:
        desk.arrived[tracks.receiver[which], 2 * m + tracks.letter[which]] += 1


@inner
def _queue(desk: Desk, ready: int, m: int, rank: int, route: int) -> None:
    """Insert by (ready, micro-batch, rank); nothing waiting became ready later than now."""
    waiting, at = desk.waiting, desk.sizes[1]
    while at > 0 and waiting[at - 1, 0] == ready:
        before = at - 1
        if waiting[before, 1] < m or (waiting[before, 1] == m and waiting[before, 2] < rank):
            break
        for k in range(4):
            waiting[at, k] = waiting[before, k]
        at = before
    waiting[at, 0], waiting[at, 1], waiting[at, 2], waiting[at, 3] = ready, m, rank, route
    desk.sizes[1] += 1


@inner
def _start_transfers(tracks: Tracks, desk: Desk, now: int) -> None:
    """One look through the waiting list; what is blocked holds nothing and may be overtaken."""
    waiting, kept, micro_batches = desk.waiting, 0, tracks.used[2]
    for slot in range(desk.sizes[1]):
        m, r = waiting[slot, 1], waiting[slot, 3]
        a, b = tracks.sender[r], tracks.receiver[r]
        if desk.egress[a] or desk.ingress[b]:
            if kept < slot:
                for k in range(4):
                    waiting[kept, k] = waiting[slot, k]
            kept += 1
            continue
        desk.egress[a] = desk.ingress[b] = 1
        end, code = now + tracks.holds[r], 4 * (r * micro_batches + m)
        if tracks.latency[r] == 0:
            _push(desk, end, code + _BOTH)
        else:
            _push(desk, end, code + _PORTS)
            _push(desk, end + tracks.latency[r], code + _ARRIVAL)
        row = desk.sizes[3]
        desk.transfer[row, 0], desk.transfer[row, 1], desk.transfer[row, 2] = r, m, now
        desk.sizes[3] += 1
    desk.sizes[1] = kept


@inner
def _start_tasks(tracks: Tracks, desk: Desk, now: int, members: int) -> None:
    """Every free device whose next task has all it needs."""
    for g in range(members):
        at = desk.position[g]
        if desk.computing[g] or at == tracks.length[g]:
            continue
        code = tracks.order[g, at]
        letter = code % 2
        if desk.arrived[g, code] < tracks.awaits[g, letter]:
            continue
        desk.computing[g] = 1
        desk.position[g] = at + 1
        _push(desk, now + tracks.duration[g, letter], 4 * (g * tracks.used[2] + code // 2) + _TASK)
        row = desk.sizes[2]
        desk.task[row, 0], desk.task[row, 1], desk.task[row, 2] = g, at, now
        desk.sizes[2] += 1


@inner
def _push(desk: Desk, time: int, code: int) -> None:
    """Into the binary heap of events; events of one instant come in any order."""
    times, codes, at = desk.event_time, desk.event_code, desk.sizes[0]
    desk.sizes[0] += 1
    while at > 0:
        parent = (at - 1) // 2
        if times[parent] <= time:
            break
        times[at], codes[at] = times[parent], codes[parent]
        at = parent
    times[at], codes[at] = time, code


@inner
def _pop(desk: Desk) -> int:
    """The code of the earliest event."""
    times, codes = desk.event_time, desk.event_code
    first = codes[0]
    desk.sizes[0] -= 1
    size = desk.sizes[0]
    time, code, at = times[size], codes[size], 0
    while True:
        child = 2 * at + 1
        if child >= size:
            break
        if child + 1 < size and times[child + 1] < times[child]:
            child += 1
        if times[child] >= time:
            break
        times[at], codes[at] = times[child], codes[child]
        at = child
    times[at], codes[at] = time, code
    return int(first)
