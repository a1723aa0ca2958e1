"""The event loop of the exact simulation, compiled: it sees only arrays, and reuses their memory between rounds.

Members (devices of stages) are numbered through all stages; a task of member g is coded as 2 · micro-batch + letter
(0 forward, 1 backward); a route is what one member sends to one member of a neighbouring stage for every micro-batch.
Few wide arrays instead of many narrow ones: compiling takes as long as there are arrays to hand on.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fleetune.compiled import compiled, inner
from fleetune.errors import Refused

Ints = NDArray[np.int64]

STAGE, LENGTH, FORWARD, BACKWARD, AWAITS, FIRST_ROUTE = 0, 1, 2, 3, 4, 6
"""Columns of `Tracks.member`: its stage; tasks in its order; ns of a forward and a backward; arrivals that each awaits;
first of the routes that each feeds, which stand together up to where the next ones begin."""
SENDER, RECEIVER, LETTER, RANK, HOLDS, LATENCY, BYTES = range(7)
"""Columns of `Tracks.route`. Rank breaks ties: it orders by lower of the two stages joined, sender's place, receiver's
place. Holds: ns for which both ports are held."""
POSITION, COMPUTING, EGRESS, INGRESS, ASKED = range(5)
"""Columns of `Desk.member`: the next task of its order; whether a task runs, whether its ports are held; whether it is
on the list of those that may start a task."""
_EVENTS, _WAITING, TASKS, TRANSFERS, _ASKING, _STALE = range(6)
"""Of `Desk.sizes`; stale: no port was freed and nothing queued since the waiting list was looked through."""
_TASK, _PORTS, _ARRIVAL, _BOTH = range(4)
_MOST_MICRO_BATCHES = (1 << 20) - 1
"""An event's code is made of bits: 2 for its kind, 20 for the micro-batch, the rest for member or route."""


class Tracks(NamedTuple):
    """What is played; arrays may be longer than what they hold, `used` says how much is."""

    used: Ints
    """Members, routes, micro-batches, stages."""
    member: Ints
    """[member, column]; one row more, where routes end."""
    order: Ints
    """[member, position] coded task."""
    route: Ints
    """[route, column]"""


class Desk(NamedTuple):
    """Memory of the loop, and after it the story of the round."""

    sizes: Ints
    event: Ints
    """[slot, 2]: time, code; a binary heap."""
    waiting: Ints
    """[slot, 4]: ready, micro-batch, rank, route."""
    member: Ints
    """[member, column]"""
    asking: Ints
    """Members that may start a task now."""
    arrived: Ints
    """[member, coded task]"""
    started: Ints
    """[0 task or 1 transfer, place, 3]: member or route, position or micro-batch, start ns."""
    ended: Ints
    """[stage] ns at which its last task ended."""


def new_tracks(members: int, micro_batches: int, stages: int) -> Tracks:
    """Room for that many; between two neighbouring stages there are fewer routes each way than members in both."""
    if micro_batches > _MOST_MICRO_BATCHES:
        raise Refused(f"simulation: {micro_batches} micro-batches are more than {_MOST_MICRO_BATCHES}; take fewer")
    return Tracks(
        used=np.array([members, 0, micro_batches, stages]),
        member=np.zeros((members + 1, 8), np.int64),
        order=np.zeros((members, 2 * micro_batches), np.int64),
        route=np.zeros((4 * members, 7), np.int64),
    )


def new_desk(members: int, micro_batches: int, stages: int) -> Desk:
    """Room for the same."""
    transfers = 4 * members * micro_batches
    return Desk(
        sizes=np.zeros(6, np.int64),
        event=np.zeros((members + 2 * transfers + 1, 2), np.int64),
        waiting=np.zeros((transfers + 1, 4), np.int64),
        member=np.zeros((members, 5), np.int64),
        asking=np.zeros(members, np.int64),
        arrived=np.zeros((members, 2 * micro_batches), np.int64),
        started=np.zeros((2, transfers, 3), np.int64),
        ended=np.zeros(stages, np.int64),
    )


@compiled
def play(tracks: Tracks, desk: Desk) -> int:
    """Instant after instant until nothing is left to happen; the ns of the last one. A member whose position is below
    its length waits for ever."""
    _clear(tracks, desk)
    now = desk.ended[0]  # 0
    _start_tasks(tracks, desk, now)
    while desk.sizes[_EVENTS] > 0:
        now = desk.event[0, 0]
        while desk.sizes[_EVENTS] > 0 and desk.event[0, 0] == now:
            _handle(tracks, desk, now, _pop(desk))
        if desk.sizes[_WAITING] > 0 and desk.sizes[_STALE] == 0:
            _start_transfers(tracks, desk, now)
        _start_tasks(tracks, desk, now)
    return int(now)


@inner
def _clear(tracks: Tracks, desk: Desk) -> None:
    for k in range(desk.sizes.size):
        desk.sizes[k] = 0
    for g in range(tracks.used[0]):
        for k in range(desk.member.shape[1]):
            desk.member[g, k] = 0
        for code in range(2 * tracks.used[2]):
            desk.arrived[g, code] = 0
        _ask(desk, g)
    for p in range(tracks.used[3]):
        desk.ended[p] = 0


@inner
def _ask(desk: Desk, g: int) -> None:
    """Put member g on the list of those that may start a task, once."""
    if desk.member[g, ASKED] == 0:
        desk.member[g, ASKED] = 1
        desk.asking[desk.sizes[_ASKING]] = g
        desk.sizes[_ASKING] += 1


@inner
def _handle(tracks: Tracks, desk: Desk, now: int, code: int) -> None:
    """Free devices and ports, count arrivals, queue what an ended task has to send."""
    kind, m, which = code & 3, (code >> 2) & _MOST_MICRO_BATCHES, code >> 22
    if kind == _TASK:
        member, row = desk.member[which], tracks.member[which]
        member[COMPUTING] = 0
        desk.ended[row[STAGE]] = now
        slot = FIRST_ROUTE + (tracks.order[which, member[POSITION] - 1] & 1)
        end = tracks.member[which, slot + 1] if slot == FIRST_ROUTE else tracks.member[which + 1, FIRST_ROUTE]
        for r in range(row[slot], end):
            _queue(desk, now, m, tracks.route[r, RANK], r)
        _ask(desk, which)
        return
    row = tracks.route[which]
    if kind != _ARRIVAL:
        desk.member[row[SENDER], EGRESS] = desk.member[row[RECEIVER], INGRESS] = desk.sizes[_STALE] = 0
    if kind != _PORTS:
        desk.arrived[row[RECEIVER], 2 * m + row[LETTER]] += 1
        _ask(desk, row[RECEIVER])


@inner
def _queue(desk: Desk, ready: int, m: int, rank: int, route: int) -> None:
    """Insert by (ready, micro-batch, rank); nothing waiting became ready later than now."""
    waiting, at = desk.waiting, desk.sizes[_WAITING]
    while at > 0 and waiting[at - 1, 0] == ready:
        before = at - 1
        if waiting[before, 1] < m or (waiting[before, 1] == m and waiting[before, 2] < rank):
            break
        for k in range(4):
            waiting[at, k] = waiting[before, k]
        at = before
    waiting[at, 0], waiting[at, 1], waiting[at, 2], waiting[at, 3] = ready, m, rank, route
    desk.sizes[_WAITING] += 1
    desk.sizes[_STALE] = 0


@inner
def _start_transfers(tracks: Tracks, desk: Desk, now: int) -> None:
    """One look through the waiting list; what is blocked holds nothing and may be overtaken."""
    waiting, kept = desk.waiting, 0
    for slot in range(desk.sizes[_WAITING]):
        m, r = waiting[slot, 1], waiting[slot, 3]
        row = tracks.route[r]
        a, b = row[SENDER], row[RECEIVER]
        if desk.member[a, EGRESS] or desk.member[b, INGRESS]:
            if kept < slot:
                for k in range(4):
                    waiting[kept, k] = waiting[slot, k]
            kept += 1
            continue
        desk.member[a, EGRESS] = desk.member[b, INGRESS] = 1
        end, code = now + row[HOLDS], (r << 22) + (m << 2)
        if row[LATENCY] == 0:
            _push(desk, end, code + _BOTH)
        else:
            _push(desk, end, code + _PORTS)
            _push(desk, end + row[LATENCY], code + _ARRIVAL)
        story = desk.started[1, desk.sizes[TRANSFERS]]
        story[0], story[1], story[2] = r, m, now
        desk.sizes[TRANSFERS] += 1
    desk.sizes[_WAITING] = kept
    desk.sizes[_STALE] = 1


@inner
def _start_tasks(tracks: Tracks, desk: Desk, now: int) -> None:
    """Every free device whose next task has all it needs; only who ended a task or got something can be one."""
    for k in range(desk.sizes[_ASKING]):
        g = desk.asking[k]
        member, row = desk.member[g], tracks.member[g]
        member[ASKED] = 0
        at = member[POSITION]
        if member[COMPUTING] or at == row[LENGTH]:
            continue
        code = tracks.order[g, at]
        letter = code & 1
        if desk.arrived[g, code] < row[AWAITS + letter]:
            continue
        member[COMPUTING] = 1
        member[POSITION] = at + 1
        _push(desk, now + row[FORWARD + letter], (g << 22) + ((code >> 1) << 2) + _TASK)
        story = desk.started[0, desk.sizes[TASKS]]
        story[0], story[1], story[2] = g, at, now
        desk.sizes[TASKS] += 1
    desk.sizes[_ASKING] = 0


@inner
def _push(desk: Desk, time: int, code: int) -> None:
    """Into the binary heap of events; events of one instant come in any order."""
    event, at = desk.event, desk.sizes[_EVENTS]
    desk.sizes[_EVENTS] += 1
    while at > 0:
        parent = (at - 1) >> 1
        if event[parent, 0] <= time:
            break
        event[at, 0], event[at, 1] = event[parent, 0], event[parent, 1]
        at = parent
    event[at, 0], event[at, 1] = time, code


@inner
def _pop(desk: Desk) -> int:
    """The code of the earliest event."""
    event, first = desk.event, desk.event[0, 1]
    desk.sizes[_EVENTS] -= 1
    size = desk.sizes[_EVENTS]
    time, code, at = event[size, 0], event[size, 1], 0
    while True:
        child = 2 * at + 1
        if child >= size:
            break
        if child + 1 < size and event[child + 1, 0] < event[child, 0]:
            child += 1
        if event[child, 0] >= time:
            break
        event[at, 0], event[at, 1] = event[child, 0], event[child, 1]
        at = child
    event[at, 0], event[at, 1] = time, code
    return int(first)
