"""The compiled event loop of the pipeline simulation, on arrays that are reused between rounds.

Members (devices of stages) are numbered through all stages. A task of a member is coded as 2 · micro-batch + letter
(0 forward, 1 backward). A route is the transfer from one member to one member of a neighbouring stage, once per
micro-batch. Few wide arrays instead of many narrow ones shorten numba's compile time.
"""

from typing import NamedTuple

import numpy as np

from fleetune.arrays import Ints
from fleetune.errors import Refused
from fleetune.jit import inner

STAGE_INDEX, LENGTH, FORWARD_NS, BACKWARD_NS, AWAITS, FIRST_ROUTE = 0, 1, 2, 3, 4, 6
"""Columns of `SimInput.member`: stage; number of tasks; ns of a forward and a backward; arrivals that a forward and a
backward wait for; first route that a forward and a backward feed (a member's routes are contiguous)."""
SENDER, RECEIVER, LETTER, RANK, HOLDS, LATENCY = range(6)
"""Columns of `SimInput.route`. RANK breaks ties: (lower of the two stages joined, sender's place, receiver's place).
HOLDS: ns for which the transfer occupies both ports."""
POSITION, COMPUTING, EGRESS, INGRESS, LISTED = range(5)
"""Columns of `SimState.member`: position of the next task; flags for a running task, busy ports, and membership in the
list of candidates."""
_EVENTS, _WAITING, STARTED, _CANDIDATES, _STALE = range(5)
"""Entries of `SimState.sizes`; STARTED: tasks and transfers; _STALE: no port was freed and no transfer
queued since the last visit of the list."""
_TASK, _PORTS, _ARRIVAL, _BOTH = range(4)
_MAX_MICRO_BATCHES = (1 << 20) - 1
"""Bits of an event's code: 2 for its kind, 20 for the micro-batch, the rest for member or route."""


class SimInput(NamedTuple):
    """Input of one simulation; arrays may be longer than their content, `used` holds the lengths."""

    used: Ints
    """Members, routes, micro-batches, stages."""
    member: Ints
    """[member + 1, column]; the last row marks the end of the routes."""
    order: Ints
    """[member, position] coded task."""
    route: Ints
    """[route, column]"""


class SimState(NamedTuple):
    """Working memory of the loop, which afterwards says how far each member came, and when each stage ended."""

    sizes: Ints
    event: Ints
    """[slot, 2] (time, code) in a binary heap."""
    waiting: Ints
    """[slot, 4] (ready time, micro-batch, rank, route)."""
    member: Ints
    """[member, column]"""
    candidates: Ints
    """Numbers of the members that may be able to start a task."""
    arrived: Ints
    """[member, coded task] number of arrivals."""
    sent: Ints
    """[route] end of the last transfer in ns."""
    ended: Ints
    """[stage] end of the last task in ns."""


def new_input(members: int, micro_batches: int, stages: int) -> SimInput:
    """Allocate an input. Refused: more micro-batches than an event's code can hold.

    Between two neighbouring stages there are fewer routes each way than members in both.
    """
    if micro_batches > _MAX_MICRO_BATCHES:
        raise Refused(f"simulation: {micro_batches} micro-batches are more than {_MAX_MICRO_BATCHES}; take fewer")
    return SimInput(
        used=np.array([members, 0, micro_batches, stages]),
        member=np.zeros((members + 1, 8), np.int64),
        order=np.zeros((members, 2 * micro_batches), np.int64),
        route=np.zeros((4 * members, 6), np.int64),
    )


def new_state(members: int, micro_batches: int, stages: int) -> SimState:
    """Allocate the state for an input of the same size."""
    transfers = 4 * members * micro_batches
    return SimState(
        sizes=np.zeros(5, np.int64),
        event=np.zeros((members + 2 * transfers + 1, 2), np.int64),
        waiting=np.zeros((transfers + 1, 4), np.int64),
        member=np.zeros((members, 5), np.int64),
        candidates=np.zeros(members, np.int64),
        arrived=np.zeros((members, 2 * micro_batches), np.int64),
        sent=np.zeros(4 * members, np.int64),
        ended=np.zeros(stages, np.int64),
    )


@inner
def run_event_loop(inputs: SimInput, state: SimState) -> int:
    """Run until no event is left and return the time of the last one in ns.

    A member whose position is then below its length waits for ever.
    """
    _clear(inputs, state)
    now = state.ended[0]  # 0
    _start_tasks(inputs, state, now)
    while state.sizes[_EVENTS] > 0:
        now = state.event[0, 0]
        while state.sizes[_EVENTS] > 0 and state.event[0, 0] == now:
            _handle(inputs, state, now, _pop(state))
        if state.sizes[_WAITING] > 0 and state.sizes[_STALE] == 0:
            _start_transfers(inputs, state, now)
        _start_tasks(inputs, state, now)
    return int(now)


@inner
def _clear(inputs: SimInput, state: SimState) -> None:
    for k in range(state.sizes.size):
        state.sizes[k] = 0
    for g in range(inputs.used[0]):
        for k in range(state.member.shape[1]):
            state.member[g, k] = 0
        for code in range(2 * inputs.used[2]):
            state.arrived[g, code] = 0
        _add_candidate(state, g)
    for p in range(inputs.used[3]):
        state.ended[p] = 0


@inner
def _add_candidate(state: SimState, g: int) -> None:
    """Add member g to the candidates unless it is listed already."""
    if state.member[g, LISTED] == 0:
        state.member[g, LISTED] = 1
        state.candidates[state.sizes[_CANDIDATES]] = g
        state.sizes[_CANDIDATES] += 1


@inner
def _handle(inputs: SimInput, state: SimState, now: int, code: int) -> None:
    """Free devices and ports, count arrivals, and queue the transfers of an ended task."""
    kind, m, which = code & 3, (code >> 2) & _MAX_MICRO_BATCHES, code >> 22
    if kind == _TASK:
        member, row = state.member[which], inputs.member[which]
        member[COMPUTING] = 0
        state.ended[row[STAGE_INDEX]] = now
        slot = FIRST_ROUTE + (inputs.order[which, member[POSITION] - 1] & 1)
        end = inputs.member[which, slot + 1] if slot == FIRST_ROUTE else inputs.member[which + 1, FIRST_ROUTE]
        for r in range(row[slot], end):
            _queue(state, now, m, inputs.route[r, RANK], r)
        _add_candidate(state, which)
        return
    row = inputs.route[which]
    if kind != _ARRIVAL:
        state.member[row[SENDER], EGRESS] = state.member[row[RECEIVER], INGRESS] = state.sizes[_STALE] = 0
    if kind != _PORTS:
        state.arrived[row[RECEIVER], 2 * m + row[LETTER]] += 1
        _add_candidate(state, row[RECEIVER])


@inner
def _queue(state: SimState, ready: int, m: int, rank: int, route: int) -> None:
    """Insert a transfer by (ready time, micro-batch, rank); all others became ready no later."""
    waiting, at = state.waiting, state.sizes[_WAITING]
    while at > 0 and waiting[at - 1, 0] == ready:
        before = at - 1
        if waiting[before, 1] < m or (waiting[before, 1] == m and waiting[before, 2] < rank):
            break
        for k in range(4):
            waiting[at, k] = waiting[before, k]
        at = before
    waiting[at, 0], waiting[at, 1], waiting[at, 2], waiting[at, 3] = ready, m, rank, route
    state.sizes[_WAITING] += 1
    state.sizes[_STALE] = 0


@inner
def _start_transfers(inputs: SimInput, state: SimState, now: int) -> None:
    """Visit the waiting list once and start each transfer whose ports are free; others may overtake a blocked one."""
    waiting, kept = state.waiting, 0
    for slot in range(state.sizes[_WAITING]):
        m, r = waiting[slot, 1], waiting[slot, 3]
        row = inputs.route[r]
        a, b = row[SENDER], row[RECEIVER]
        if state.member[a, EGRESS] or state.member[b, INGRESS]:
            if kept < slot:
                for k in range(4):
                    waiting[kept, k] = waiting[slot, k]
            kept += 1
            continue
        state.member[a, EGRESS] = state.member[b, INGRESS] = 1
        end, code = now + row[HOLDS], (r << 22) + (m << 2)
        state.sent[r] = end
        if row[LATENCY] == 0:
            _push(state, end, code + _BOTH)
        else:
            _push(state, end, code + _PORTS)
            _push(state, end + row[LATENCY], code + _ARRIVAL)
        state.sizes[STARTED] += 1
    state.sizes[_WAITING] = kept
    state.sizes[_STALE] = 1


@inner
def _start_tasks(inputs: SimInput, state: SimState, now: int) -> None:
    """Start the next task of each free candidate if its inputs have arrived."""
    for k in range(state.sizes[_CANDIDATES]):
        g = state.candidates[k]
        member, row = state.member[g], inputs.member[g]
        member[LISTED] = 0
        at = member[POSITION]
        if member[COMPUTING] or at == row[LENGTH]:
            continue
        code = inputs.order[g, at]
        letter = code & 1
        if state.arrived[g, code] < row[AWAITS + letter]:
            continue
        member[COMPUTING] = 1
        member[POSITION] = at + 1
        _push(state, now + row[FORWARD_NS + letter], (g << 22) + ((code >> 1) << 2) + _TASK)
        state.sizes[STARTED] += 1
    state.sizes[_CANDIDATES] = 0


@inner
def _push(state: SimState, time: int, code: int) -> None:
    """Push an event to the binary heap; events of the same time have no order."""
    event, at = state.event, state.sizes[_EVENTS]
    state.sizes[_EVENTS] += 1
    while at > 0:
        parent = (at - 1) >> 1
        if event[parent, 0] <= time:
            break
        event[at, 0], event[at, 1] = event[parent, 0], event[parent, 1]
        at = parent
    event[at, 0], event[at, 1] = time, code


@inner
def _pop(state: SimState) -> int:
    """Pop the earliest event and return its code."""
    event, first = state.event, state.event[0, 1]
    state.sizes[_EVENTS] -= 1
    size = state.sizes[_EVENTS]
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
