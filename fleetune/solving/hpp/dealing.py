"""Samples of a micro-batch dealt to a group of devices; compiled, since planners do it millions of times."""

import numpy as np

from fleetune.compiled import compiled, inner
from fleetune.solving.hpp.case import ACTIVATION, GRADIENT, OUTPUT, PARAM, TRAINABLE, Ints, Numbers

NONE, LOOSE, TIGHT = 0, 1, 2
"""No way to deal; dealt as if memory were ample; dealt, and memory had a say."""


@inner
def task_s(numbers: Numbers, device: int, samples: int, first: int, end: int) -> tuple[float, float]:
    """Forward and backward seconds of layers [first, end) on `samples` samples, work for links included."""
    lost_s = numbers.lost_s[device] * samples
    table, edge = numbers.seconds[device, samples], numbers.edge
    return (
        table[end, 0] - table[first, 0] + lost_s * (edge[first, OUTPUT] + edge[end, OUTPUT]),
        table[end, 1] - table[first, 1] + lost_s * (edge[first, GRADIENT] + edge[end, GRADIENT]),
    )


@inner
def both_s(numbers: Numbers, device: int, samples: int, first: int, end: int) -> float:
    """Forward plus backward seconds."""
    there, back = task_s(numbers, device, samples, first, end)
    return there + back


@inner
def state_bytes(numbers: Numbers, first: int, end: int) -> int:
    """Weights, gradients, optimizer state and snapshots of layers [first, end), rounded up once."""
    low, high = numbers.edge[first], numbers.edge[end]
    own = np.int64(np.ceil((high[TRAINABLE] - low[TRAINABLE]) * numbers.state_per_byte))
    return int(high[PARAM] - low[PARAM] + own)


@inner
def most_samples(numbers: Numbers, device: int, first: int, end: int, warmup: int) -> int:
    """The largest share of layers [first, end) that fits the device's memory with `warmup` micro-batches between
    forward and backward; a whole micro-batch at most."""
    room = numbers.memory_bytes[device] - state_bytes(numbers, first, end)
    batch = numbers.seconds.shape[1] - 1
    if room < 0:
        return 0
    kept = min(warmup, numbers.micro_batches) * (numbers.edge[end, ACTIVATION] - numbers.edge[first, ACTIVATION])
    if kept * batch <= room:
        return int(batch)
    return int(room // kept)


@compiled
def deal_by_capacity(numbers: Numbers, group: Ints, first: int, end: int, warmup: int, shares: Ints) -> int:
    """Asteroid Algorithm 1 into `shares`; says NONE, LOOSE or TIGHT.

    Phase 1 deals in proportion to capacity (eq. (9)) as memory allows, and again what is left over; whole samples by
    rounding running totals. A device left without a sample takes one from the largest share: who is in a group works.
    Phase 2 moves blocks of samples from the slowest device to the fastest one with room while the slowest gets faster.
    """
    count, batch = group.size, numbers.seconds.shape[1] - 1
    outcome, room, capacity = LOOSE, numbers.room[:count], numbers.hand[0, :count]
    if count > batch:
        return NONE
    for k in range(count):
        shares[k] = 0
        room[k] = most_samples(numbers, group[k], first, end, warmup)
        capacity[k] = 1.0 / max(both_s(numbers, group[k], batch, first, end), 1e-15)
        if room[k] < 1:
            return NONE
    left = batch
    while left > 0:
        dealt = _in_proportion(left, capacity, room, shares)
        if dealt < left:
            outcome = TIGHT
        left -= dealt
        if dealt == 0:
            return NONE
    _leave_nobody_out(shares)
    return max(outcome, _offload(numbers, group, first, end, room, shares))


@inner
def _in_proportion(left: int, capacity: np.ndarray, room: Ints, shares: Ints) -> int:
    """One pass of phase 1 over those with room, whole samples by rounding running totals; how many it dealt."""
    total, running, reached, dealt = 0.0, 0.0, 0, 0
    for k in range(shares.size):
        if shares[k] < room[k]:
            total += capacity[k]
    for k in range(shares.size):
        if shares[k] < room[k]:
            running += capacity[k]
            mark = int(np.rint(running / total * left))
            given = min(mark - reached, room[k] - shares[k])
            reached = mark
            shares[k] += given
            dealt += given
    return dealt


@inner
def _leave_nobody_out(shares: Ints) -> None:
    for k in range(shares.size):
        if shares[k] == 0:
            largest = 0
            for j in range(1, shares.size):
                if shares[j] > shares[largest]:
                    largest = j
            shares[largest] -= 1
            shares[k] = 1


@inner
def _offload(numbers: Numbers, group: Ints, first: int, end: int, room: Ints, shares: Ints) -> int:
    """Phase 2; TIGHT when somebody was passed over for lack of memory."""
    count, block = shares.size, max(1, (numbers.seconds.shape[1] - 1) // 64)
    outcome, times = LOOSE, numbers.hand[1, :count]
    for k in range(count):
        times[k] = both_s(numbers, group[k], shares[k], first, end)
    while True:
        slow, fast = 0, -1
        for k in range(1, count):
            if times[k] > times[slow]:
                slow = k
        moved = min(block, shares[slow] - 1)
        for k in range(count):
            if k != slow and shares[k] + moved > room[k]:
                outcome = TIGHT
            elif k != slow and (fast < 0 or times[k] < times[fast]):
                fast = k
        if moved < 1 or fast < 0:
            return outcome
        relieved = both_s(numbers, group[slow], shares[slow] - moved, first, end)
        loaded = both_s(numbers, group[fast], shares[fast] + moved, first, end)
        slowest = max(relieved, loaded)
        for k in range(count):
            if k not in (slow, fast):
                slowest = max(slowest, times[k])
        if slowest >= times[slow]:
            return outcome
        shares[slow] -= moved
        shares[fast] += moved
        times[slow], times[fast] = relieved, loaded


@inner
def deal_exactly(numbers: Numbers, group: Ints, first: int, end: int, warmup: int, shares: Ints) -> bool:
    """Deal so that the slowest is as fast as can be, into `shares`; False where memory or the micro-batch is too small.

    Each sample goes where it hurts least, which is exact where times grow with samples. Nobody's first samples that
    take no longer than any dealing must are dealt one by one: they are jumped over.
    """
    count, batch = group.size, numbers.seconds.shape[1] - 1
    if count > batch:
        return False
    total, pace = 0, 0.0
    room, after = numbers.room[:count], numbers.hand[0, :count]
    for k in range(count):
        room[k] = most_samples(numbers, group[k], first, end, warmup)
        total += room[k]
        if room[k] < 1:
            return False
        pace += batch / max(both_s(numbers, group[k], batch, first, end), 1e-15)
    if total < batch:
        return False
    left = _jump(numbers, group, (first, end), room, shares, 0.5 * batch / pace)
    for k in range(count):
        after[k] = both_s(numbers, group[k], shares[k] + 1, first, end) if shares[k] < room[k] else np.inf
    while left > 0:
        best = 0
        for k in range(1, count):
            if after[k] < after[best]:
                best = k
        shares[best] += 1
        left -= 1
        more = shares[best] < room[best]
        after[best] = both_s(numbers, group[best], shares[best] + 1, first, end) if more else np.inf
    return True


@inner
def _jump(numbers: Numbers, group: Ints, layers: tuple[int, int], room: Ints, shares: Ints, within_s: float) -> int:
    """Give everybody what they do in `within_s`, unless that is more than there is; what is left then."""
    given, left = 0, numbers.seconds.shape[1] - 1 - group.size
    for k in range(group.size):
        low, high = 1, room[k]
        while low < high:
            middle = (low + high + 1) // 2
            if both_s(numbers, group[k], middle, layers[0], layers[1]) <= within_s:
                low = middle
            else:
                high = middle - 1
        shares[k] = low
        given += low - 1
    if given <= left:
        return int(left - given)
    for k in range(group.size):
        shares[k] = 1
    return int(left)
