"""Allocation of a micro-batch's samples to a group of devices; compiled where planners call it millions of times."""

import heapq
from collections.abc import Callable, Sequence

import numpy as np

from fleetune.arrays import Floats, Ints
from fleetune.jit import compiled, inner
from fleetune.solving.hpp.instance import ACTIVATION, GRADIENT, OUTPUT, PARAM, TRAINABLE, InstanceArrays, Span

IMPOSSIBLE, MEMORY_AMPLE, MEMORY_BOUND = 0, 1, 2
"""Outcomes: no allocation exists; memory limited no share; memory limited some share."""


@inner
def task_s(arrays: InstanceArrays, device: int, samples: int, first: int, end: int) -> tuple[float, float]:
    """Forward and backward seconds of layers [first, end) on `samples` samples, work for links included."""
    lost_s = arrays.lost_s[device] * samples
    table, edge = arrays.seconds[device, samples], arrays.edge
    return (
        table[end, 0] - table[first, 0] + lost_s * (edge[first, OUTPUT] + edge[end, OUTPUT]),
        table[end, 1] - table[first, 1] + lost_s * (edge[first, GRADIENT] + edge[end, GRADIENT]),
    )


@inner
def both_s(arrays: InstanceArrays, device: int, samples: int, first: int, end: int) -> float:
    """Forward plus backward seconds."""
    there, back = task_s(arrays, device, samples, first, end)
    return there + back


@inner
def state_bytes(arrays: InstanceArrays, first: int, end: int, members: int) -> int:
    """`LayerBytes.state`, compiled."""
    low, high = arrays.edge[first], arrays.edge[end]
    trained = high[TRAINABLE] - low[TRAINABLE]
    own = np.int64(np.ceil(trained * arrays.state_per_byte))
    if members > 1:
        own += arrays.received_per_byte * trained
    return int(high[PARAM] - low[PARAM] + own)


@inner
def least_samples(arrays: InstanceArrays, first: int, end: int) -> int:
    """`Instance.least_samples`, compiled."""
    least = 1
    for k in range(arrays.floors.size):
        if arrays.floored[end, k] > arrays.floored[first, k]:
            least = arrays.floors[k]
    return int(least)


@inner
def max_samples(arrays: InstanceArrays, device: int, first: int, end: int, warmup: int, members: int) -> int:
    """`LayerBytes.max_samples` of a device with min(warmup, M) micro-batches between forward and backward, compiled."""
    room = arrays.memory_bytes[device] - state_bytes(arrays, first, end, members)
    batch = arrays.seconds.shape[1] - 1
    if room < 0:
        return 0
    kept = min(warmup, arrays.micro_batches) * (arrays.edge[end, ACTIVATION] - arrays.edge[first, ACTIVATION])
    if kept * batch <= room:
        return int(batch)
    return int(room // kept)


@compiled
def allocate_by_capacity(arrays: InstanceArrays, group: Ints, first: int, end: int, warmup: int, shares: Ints) -> int:
    """Asteroid's Algorithm 1, written to `shares`; returns IMPOSSIBLE, MEMORY_AMPLE or MEMORY_BOUND.

    Phase 1 allocates in proportion to capacity (eq. (9)) as memory allows, and again what is left over; whole samples
    by rounding running totals. A device with less than the fewest samples of these layers, at least one, takes them
    from the largest share, since every member of a group works. Phase 2 moves blocks of samples from the slowest device
    to the fastest one with room as long as the slowest gets faster.
    """
    count, batch = group.size, arrays.seconds.shape[1] - 1
    outcome, limits, capacity = MEMORY_AMPLE, arrays.int_scratch[:count], arrays.float_scratch[0, :count]
    least = least_samples(arrays, first, end)
    if count * least > batch:
        return IMPOSSIBLE
    for k in range(count):
        shares[k] = 0
        limits[k] = max_samples(arrays, group[k], first, end, warmup, count)
        capacity[k] = 1.0 / max(both_s(arrays, group[k], batch, first, end), 1e-15)
        if limits[k] < least:
            return IMPOSSIBLE
    left = batch
    while left > 0:
        allocated = _in_proportion(left, capacity, limits, shares)
        if allocated < left:
            outcome = MEMORY_BOUND
        left -= allocated
        if allocated == 0:
            return IMPOSSIBLE
    _give_everyone(shares, least)
    return max(outcome, _offload(arrays, group, Span(first, end), limits, shares))


@inner
def _in_proportion(left: int, capacity: np.ndarray, limits: Ints, shares: Ints) -> int:
    """One pass of phase 1 over the devices with room; returns how many samples it allocated."""
    total, running, reached, allocated = 0.0, 0.0, 0, 0
    for k in range(shares.size):
        if shares[k] < limits[k]:
            total += capacity[k]
    for k in range(shares.size):
        if shares[k] < limits[k]:
            running += capacity[k]
            mark = int(np.rint(running / total * left))
            given = min(mark - reached, limits[k] - shares[k])
            reached = mark
            shares[k] += given
            allocated += given
    return allocated


@inner
def _give_everyone(shares: Ints, least: int) -> None:
    """Move samples from the largest shares until none is below `least`."""
    for k in range(shares.size):
        while shares[k] < least:
            largest = 0
            for j in range(1, shares.size):
                if shares[j] > shares[largest]:
                    largest = j
            shares[largest] -= 1
            shares[k] += 1


@inner
def _offload(arrays: InstanceArrays, group: Ints, layers: Span, limits: Ints, shares: Ints) -> int:
    """Phase 2; returns MEMORY_BOUND where a device was passed over for lack of memory, else MEMORY_AMPLE."""
    first, end = layers
    least = least_samples(arrays, first, end)
    count, block = shares.size, max(1, (arrays.seconds.shape[1] - 1) // 64)
    outcome, times = MEMORY_AMPLE, arrays.float_scratch[1, :count]
    for k in range(count):
        times[k] = both_s(arrays, group[k], shares[k], first, end)
    while True:
        slow, fast = 0, -1
        for k in range(1, count):
            if times[k] > times[slow]:
                slow = k
        moved = min(block, shares[slow] - least)
        for k in range(count):
            if k != slow and shares[k] + moved > limits[k]:
                outcome = MEMORY_BOUND
            elif k != slow and (fast < 0 or times[k] < times[fast]):
                fast = k
        if moved < 1 or fast < 0:
            return outcome
        relieved = both_s(arrays, group[slow], shares[slow] - moved, first, end)
        loaded = both_s(arrays, group[fast], shares[fast] + moved, first, end)
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
def allocate_optimally(arrays: InstanceArrays, group: Ints, first: int, end: int, warmup: int, shares: Ints) -> bool:
    """Write the shares with the least slowest time to `shares`; False where memory or the micro-batch is too small.

    Each sample goes to the device whose time is least afterwards, which is exact where times grow with samples. It
    starts from the shares that every device finishes within half the time of a fluid allocation.
    """
    count, batch, least = group.size, arrays.seconds.shape[1] - 1, least_samples(arrays, first, end)
    if count * least > batch:
        return False
    total, pace = 0, 0.0
    limits, after = arrays.int_scratch[:count], arrays.float_scratch[0, :count]
    for k in range(count):
        limits[k] = max_samples(arrays, group[k], first, end, warmup, count)
        total += limits[k]
        if limits[k] < least:
            return False
        pace += batch / max(both_s(arrays, group[k], batch, first, end), 1e-15)
    if total < batch:
        return False
    left = _start_shares(arrays, group, Span(first, end), limits, shares, 0.5 * batch / pace)
    for k in range(count):
        after[k] = both_s(arrays, group[k], shares[k] + 1, first, end) if shares[k] < limits[k] else np.inf
    while left > 0:
        best = 0
        for k in range(1, count):
            if after[k] < after[best]:
                best = k
        shares[best] += 1
        left -= 1
        more = shares[best] < limits[best]
        after[best] = both_s(arrays, group[best], shares[best] + 1, first, end) if more else np.inf
    return True


@inner
def _start_shares(
    arrays: InstanceArrays, group: Ints, layers: Span, limits: Ints, shares: Ints, within_s: float
) -> int:
    """Give each device the samples it finishes in `within_s`, or the fewest where these are too many; returns the
    rest."""
    least = least_samples(arrays, layers.first, layers.end)
    given, left = 0, arrays.seconds.shape[1] - 1 - group.size * least
    for k in range(group.size):
        low, high = least, limits[k]
        while low < high:
            middle = (low + high + 1) // 2
            if both_s(arrays, group[k], middle, layers.first, layers.end) <= within_s:
                low = middle
            else:
                high = middle - 1
        shares[k] = low
        given += low - least
    if given <= left:
        return int(left - given)
    for k in range(group.size):
        shares[k] = least
    return int(left)


def even_shares(samples: int, count: int) -> tuple[int, ...]:
    """Shares of `samples` for `count` devices that differ by one at most, the larger first."""
    return tuple(samples // count + (k < samples % count) for k in range(count))


def allocate(seconds: Sequence[Sequence[float]], most: Sequence[int], samples: int, least: int = 1) -> list[int] | None:
    """Samples of each device with the least slowest time; None where that is impossible.

    Each device takes at least `least` and at most `most` samples, `samples` in all; seconds[d][y - 1] is the time of
    device d for y samples. Where times grow with samples, each sample goes to the device whose time is least afterwards
    (exact by an exchange argument); else a dynamic program over partial sums breaks ties by the least sum of times.
    """
    most = [min(limit, samples) for limit in most]
    if any(limit < least for limit in most) or sum(most) < samples or len(most) * least > samples:
        return None
    grows = all(a <= b for row in seconds for a, b in zip(row, row[1:], strict=False))
    allocation = _allocate_greedily if grows else _allocate_by_sums
    return allocation(seconds, most, samples, least)


def allocate_runs(seconds: Callable[[int, Ints], Floats], most: Ints, samples: int, least: Ints) -> Ints:
    """Allocations of `samples` for many runs of layers at once, each as by `allocate` where times grow with samples.

    most: [device, ...], at least `least` [...] and `samples` in sum where the result counts; seconds(d, y): times [...]
    of device d for y [...] samples. Returns samples, [device, ...].
    """
    shares = np.broadcast_to(least, most.shape).copy()
    devices = np.arange(len(most)).reshape(-1, *(1,) * (most.ndim - 1))
    left = samples - len(most) * least
    while np.any(left > 0):
        after = [np.where(shares[d] < most[d], seconds(d, shares[d] + 1), np.inf) for d in range(len(most))]
        shares += (devices == np.argmin(after, axis=0)) & (left > 0)
        left = left - 1
    return shares


def _allocate_greedily(seconds: Sequence[Sequence[float]], most: Sequence[int], samples: int, least: int) -> list[int]:
    shares = [least] * len(most)
    after = [(seconds[d][least], d) for d in range(len(most)) if most[d] > least]
    heapq.heapify(after)
    for _ in range(samples - len(most) * least):
        _, chosen = after[0]
        shares[chosen] += 1
        if shares[chosen] < most[chosen]:
            heapq.heapreplace(after, (seconds[chosen][shares[chosen]], chosen))
        else:
            heapq.heappop(after)
    return shares


def _allocate_by_sums(seconds: Sequence[Sequence[float]], most: Sequence[int], samples: int, least: int) -> list[int]:
    ranges = [range(least, limit + 1) for limit in most]
    slowest = _table(seconds, ranges, samples, limit=np.inf, add=False)[0][-1][samples]
    _, choices = _table(seconds, ranges, samples, limit=slowest, add=True)
    shares, left = [], samples
    for choice in reversed(choices):
        shares.append(int(choice[left]))
        left -= shares[-1]
    return shares[::-1]


def _table(
    seconds: Sequence[Sequence[float]], ranges: Sequence[range], samples: int, *, limit: float, add: bool
) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Tables best and choices. best[d][s] is the least largest (with `add`: summed) time of the first d devices on s
    samples where no time exceeds `limit`; choices[d][s] the samples that device d takes then."""
    best = [np.array([0.0] + [np.inf] * samples)]
    choices = []
    for row, allowed in zip(seconds, ranges, strict=True):
        here, choice = np.full(samples + 1, np.inf), np.zeros(samples + 1, dtype=np.int64)
        for y in allowed:
            if row[y - 1] > limit:
                continue
            before = best[-1][: samples + 1 - y]
            value = before + row[y - 1] if add else np.maximum(before, row[y - 1])
            better = value < here[y:]
            here[y:][better] = value[better]
            choice[y:][better] = y
        best.append(here)
        choices.append(choice)
    return best, choices
