"""Which devices, in which order, with which cuts: all at once, by a dynamic program over the line.

State: the cut reached and the device that ran the last run of operators; a run begins with what crosses its cut coming
from the device before it. Many limits on the slowest device (and guesses of the slowest link, where links are thinned
by it) are computed side by side, because eq. (3)'s maximum does not add up along the line but is plain under a limit.

The best cuts of a line for devices in a given order, all cuts of a device side by side.

f[k, i] is the least sum of computing and receiving when device k ends a run at cut i; its run begins at a cut j within
what its limits allow, where what crosses j comes from the device that ended there.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fleetune.solving.deadline import NO_DEADLINE, Deadline
from fleetune.solving.opfence.instance import Instance, Ints
from fleetune.solving.opfence.linear_order import LinearOrder
from fleetune.solving.validation import Floats

SLACK = 1e-9
"""Relative: limits that a plan was found to have must not be missed by rounding."""
MIN_GRID_SHARE = 1e-5
"""Of the highest of limits that are tried; lower ones forbid everything."""
Bools = NDArray[np.bool_]
Places = NDArray[np.int32]


class Limits(NamedTuple):
    """Side by side: [trial] each."""

    compute_s: Floats
    """No device computes for longer."""
    receive_s: Floats
    """No run receives for longer."""
    link_s: Floats
    """No link's dense transfers take longer; links are thinned as if the slowest took this."""


class DevicePath(NamedTuple):
    """A sequence of runs found."""

    devices: list[int]
    ends: list[int]
    """Cuts, the last is the line's."""


def geometric_grid(low: float, high: float, count: int) -> Floats:
    """Numbers from low (or a small part of high, if that is more) to high, each so many times the one before."""
    low = max(low, MIN_GRID_SHARE * high)
    found: Floats = low * np.maximum(high / (low or 1.0), 1.0) ** np.linspace(0.0, 1.0, count)
    return found


class PathProgram:
    """The program over one line.

    simple: each device in one run at most; of each state only the cheapest way there is remembered, which is good
    but not always best. Otherwise devices may come again: what is found is no plan but, on a chain, below every plan.
    weight: what a byte counts instead of being thinned, for bounds. deadline: what it ends finds nothing.
    """

    def __init__(
        self,
        instance: Instance,
        line: LinearOrder,
        *,
        simple: bool = True,
        weight: float | None = None,
        deadline: Deadline = NO_DEADLINE,
    ) -> None:
        self.line, self.simple, self.codec, self.weight = line, simple, instance.codec, weight
        self.deadline = deadline
        self.alpha, self.beta = instance.alpha.T.copy(), instance.beta.T.copy()
        self.speed, self.budget_bytes = instance.speed, instance.budget_bytes
        self.same = np.eye(instance.devices, dtype=bool)

    def costs(self, limits: Limits) -> Floats:
        """[trial]: sum over devices of computing and receiving in the cheapest walk; infinite where there is none, and
        0, which no walk is below, where the deadline ended it."""
        found = self._run(limits)
        return np.zeros(len(limits.compute_s)) if found is None else np.asarray(found[0].min(axis=1))

    def trials(self, limits: Limits) -> list[DevicePath]:
        """The cheapest walk of every trial that has one, without repetition."""
        walked = self._run(limits)
        if walked is None:
            return []
        last, start, before = walked
        found: dict[tuple[tuple[int, ...], tuple[int, ...]], None] = {}
        for trial in np.flatnonzero(np.isfinite(last.min(axis=1))).tolist():
            found[self._back(start[:, trial], before[:, trial], int(np.argmin(last[trial])))] = None
        return [DevicePath(list(devices), list(ends)) for devices, ends in found]

    def _run(self, limits: Limits) -> tuple[Floats, Places, Places] | None:
        """[trial, device] of the cost at the end; [cut, trial, device]: where the run that ends there began, and which
        device came before a run that begins there. None where it expired."""
        if self.deadline.expired:
            return None
        cuts, trials, devices = self.line.cuts, len(limits.compute_s), len(self.speed)
        first = self._first_starts(limits.compute_s)
        work_s = self.line.flops[:, None] / self.speed
        begun = np.full((cuts, trials, devices), np.inf)
        begun[0] = 0.0
        start = np.zeros((cuts + 1, trials, devices), np.int32)
        previous = np.full((cuts, trials, devices), -1, np.int32)
        used = np.zeros((cuts, trials, devices, devices) if self.simple else (1, 1, devices, devices), bool)
        used[0] = self.same
        best, best_s = np.zeros((trials, devices), np.int64), begun[0].copy()
        across, device = np.arange(trials)[:, None], np.arange(devices)
        for cut in range(1, cuts):
            if self.deadline.expired:
                return None
            _expire(begun, best, best_s, first[cut], cut)
            start[cut] = best
            entered = (best_s + work_s[cut])[:, None, :] + self._entering(cut, limits)
            if self.simple:
                behind = used[best, across, device]
                entered[behind.transpose(0, 2, 1)] = np.inf
            before = entered.argmin(axis=2)
            previous[cut] = before
            begun[cut] = entered[across, device, before] - work_s[cut]
            if self.simple:
                used[cut] = behind[across, before] | self.same
            better = begun[cut] < best_s
            best_s[better] = begun[cut][better]
            best[better] = cut
        _expire(begun, best, best_s, first[cuts], cuts)
        start[cuts] = best
        return best_s + work_s[cuts], start, previous

    def _first_starts(self, compute_s: Floats) -> Ints:
        """[cut, trial, device]: where a run that ends at the cut may begin at the earliest, by work and memory."""
        flops, memory = self.line.flops, self.line.memory_bytes
        room = np.minimum(compute_s[:, None] * self.speed * (1 + SLACK), flops[-1])
        by_work = np.searchsorted(flops, flops[:, None, None] - room)
        by_memory = np.searchsorted(memory, memory[:, None] - self.budget_bytes)
        found: Ints = np.maximum(by_work, by_memory[:, None, :])
        return found

    def _entering(self, cut: int, limits: Limits) -> Floats:
        """[trial, to, from]: seconds of receiving what crosses the cut; infinite where a limit forbids it."""
        crossing_bytes = self.line.crossing_bytes[cut]
        alpha_s = self.alpha * self.line.crossing[cut]
        dense_s = alpha_s + self.beta * crossing_bytes
        closed = self.same[None]
        if self.weight is not None:
            seconds = (alpha_s + self.beta * (crossing_bytes * self.weight))[None]
        elif not self.codec.ratio:
            seconds = dense_s[None]
        else:
            slowest_s = limits.link_s[:, None, None]
            seconds = alpha_s + self.beta * self.codec.wire_bytes(crossing_bytes, dense_s[None], slowest_s)
            closed = closed | (dense_s > slowest_s * (1 + SLACK))
        allowed = limits.receive_s[:, None, None] * (1 + SLACK)
        found: Floats = np.where(closed | (seconds > allowed), np.inf, seconds)
        return found

    def _back(self, start: Places, before: Places, place: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        devices, ends, cut = list[int](), list[int](), self.line.cuts
        while True:
            devices.append(place)
            ends.append(cut)
            cut = int(start[cut, place])
            if cut == 0:
                return tuple(devices[::-1]), tuple(ends[::-1])
            place = int(before[cut, place])


def _expire(begun: Floats, best: Ints, best_s: Floats, first: Ints, cut: int) -> None:
    """Choose anew, among starts before `cut`, where the best one lies before the `first` that the limits allow."""
    late = np.nonzero(best < first)
    if not len(late[0]):
        return
    low = min(int(first[late].min()), cut - 1)
    open_s = begun[low:cut, late[0], late[1]]
    open_s = np.where(np.arange(low, cut)[:, None] < first[late], np.inf, open_s)
    chosen = open_s.argmin(axis=0)
    best_s[late] = open_s[chosen, np.arange(len(chosen))]
    best[late] = np.where(np.isfinite(best_s[late]), chosen + low, np.minimum(first[late], cut - 1))


class _Reached(NamedTuple):
    """By device in the row: [trial, cut] each."""

    cost_s: Floats
    begin: Ints
    """Where the run that ends at the cut began."""
    before: Ints
    """Placement in the row of the device before a run that begins at the cut; -1: none."""


def best_cuts(
    instance: Instance,
    line: LinearOrder,
    row: list[int],
    limits: Limits,
    *,
    use_all: bool,
    deadline: Deadline = NO_DEADLINE,
) -> list[DevicePath]:
    """The cheapest cuts within each of the limits that can be kept, without repetition.

    use_all: each device of the row has at least one operator; else some may be left out. None where it expired.
    """
    reached: list[_Reached] = []
    for place, device in enumerate(row):
        if deadline.expired:
            return []
        entered, before = _entered(instance, line, (row, place), limits, reached[-1:] if use_all else reached)
        if place == 0 or not use_all:
            entered[:, 0], before[:, 0] = 0.0, -1
        work_s = line.flops / instance.speed[device]
        begin = _lowest(entered - work_s, _first_starts(instance, line, device, limits.compute_s))
        cost_s = np.take_along_axis(entered - work_s, begin, axis=1) + work_s
        cost_s[begin >= np.arange(line.cuts + 1)] = np.inf  # a run has at least one operator
        reached.append(_Reached(cost_s, begin, before))
    return _trials(row, reached, line.cuts, use_all)


def _entered(
    instance: Instance, line: LinearOrder, at: tuple[list[int], int], limits: Limits, reached: list[_Reached]
) -> tuple[Floats, Ints]:
    """[trial, cut]: the least cost with what crosses the cut received, and the place in the row of who sends it."""
    row, place = at
    shape = (len(limits.compute_s), line.cuts + 1)
    best, sender = np.full(shape, np.inf), np.full(shape, -1)
    for other in range(place - len(reached), place):
        cost_s = reached[other - place].cost_s + _hop_s(instance, line, (row[other], row[place]), limits)
        better = cost_s < best
        best[better] = cost_s[better]
        sender[better] = other
    return best, sender


def _hop_s(instance: Instance, line: LinearOrder, link: tuple[int, int], limits: Limits) -> Floats:
    """[trial, cut]: seconds of sending what crosses; infinite where a limit forbids it."""
    alpha_s, beta = instance.alpha[link] * line.crossing, instance.beta[link]
    dense_s = (alpha_s + beta * line.crossing_bytes)[None]
    seconds, closed = dense_s, np.zeros((1, 1), bool)
    if instance.codec.ratio:
        slowest_s = limits.link_s[:, None]
        seconds = alpha_s + beta * instance.codec.wire_bytes(line.crossing_bytes, dense_s, slowest_s)
        closed = dense_s > slowest_s * (1 + SLACK)
    found: Floats = np.where(closed | (seconds > limits.receive_s[:, None] * (1 + SLACK)), np.inf, seconds)
    return found


def _first_starts(instance: Instance, line: LinearOrder, device: int, compute_s: Floats) -> Ints:
    """[trial, cut]: where a run of the device that ends at the cut may begin at the earliest."""
    room = np.minimum(compute_s * instance.speed[device] * (1 + SLACK), line.flops[-1])
    by_work = np.searchsorted(line.flops, line.flops - room[:, None])
    by_memory = np.searchsorted(line.memory_bytes, line.memory_bytes - instance.budget_bytes[device])
    found: Ints = np.maximum(by_work, by_memory)
    return found


def _lowest(values: Floats, first: Ints) -> Ints:
    """[row, i]: where the lowest of values[row, first[row, i]:i] is; i itself where the stretch is empty.

    By tables of the lowest of stretches of 1, 2, 4, ... values: any stretch is two of them that overlap.
    """
    rows, count = values.shape
    at = np.arange(count)
    span = np.maximum(at - first, 1)
    tables = [np.broadcast_to(np.arange(count), (rows, count))]
    across = np.arange(rows)[:, None]
    length = 1
    while 2 * length <= span.max():
        left = tables[-1][:, : count - 2 * length + 1]
        right = tables[-1][:, length : count - length + 1]
        longer = np.full((rows, count), count - 1)
        longer[:, : left.shape[1]] = np.where(values[across, left] <= values[across, right], left, right)
        tables.append(longer)
        length *= 2
    level = np.frexp(span.astype(np.float64))[1] - 1
    stacked = np.stack(tables)
    start = np.minimum(first, np.maximum(at - 1, 0))
    left = stacked[level, across, start]
    right = stacked[level, across, np.maximum(at - (1 << level), 0)]
    found = np.where(values[across, left] <= values[across, right], left, right)
    return np.where(first < at, found, at)


def _trials(row: list[int], reached: list[_Reached], cuts: int, use_all: bool) -> list[DevicePath]:
    last = np.array([one.cost_s[:, cuts] for one in reached])
    if use_all:
        last[:-1] = np.inf
    found: dict[tuple[tuple[int, ...], tuple[int, ...]], None] = {}
    for trial in np.flatnonzero(np.isfinite(last.min(axis=0))).tolist():
        place, at = int(last[:, trial].argmin()), cuts
        devices, ends = list[int](), list[int]()
        while place >= 0:
            devices.append(row[place])
            ends.append(at)
            at = int(reached[place].begin[trial, at])
            place = int(reached[place].before[trial, at])
        found[tuple(devices[::-1]), tuple(ends[::-1])] = None
    return [DevicePath(list(devices), list(ends)) for devices, ends in found]
