"""Dynamic programs over a linear order: devices, their order and the cuts between their runs of operators.

`PathProgram` chooses all three. Its state is the cut reached and the device of the last run; a run begins by receiving
from the device before it what crosses its cut. `best_cuts` takes the order of devices as given: f[k, i] is the least
sum of compute and receive times if device k ends a run at cut i.

Many limits on the slowest device (and guesses of the slowest link, if links are compressed relative to it) are solved
side by side, because the maximum in eq. (3) is not additive along the order, but is a constraint under a limit.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fleetune.arrays import Floats, Ints
from fleetune.solving.limits import NO_DEADLINE, Deadline
from fleetune.solving.opfence.instance import Instance, LinearOrder

SLACK = 1e-9
"""Relative tolerance of limits, so that rounding does not exclude the plan that they came from."""
MIN_GRID_SHARE = 1e-5
"""Least limit relative to the highest; lower ones exclude everything."""
Indices = NDArray[np.int32]


class TrialLimits(NamedTuple):
    """Limits of the trials that are solved side by side: arrays [trial]."""

    compute_s: Floats
    """Largest compute time of a device."""
    receive_s: Floats
    """Largest receive time of a run."""
    link_s: Floats
    """Largest dense time of a link; links are compressed as if the slowest took this."""


class DevicePath(NamedTuple):
    """A sequence of runs."""

    devices: list[int]
    ends: list[int]
    """Cuts, the last one at the end of the order."""


def geometric_grid(low: float, high: float, count: int) -> Floats:
    """Return a geometric sequence from low (at least a small share of high) to high."""
    low = max(low, MIN_GRID_SHARE * high)
    found: Floats = low * np.maximum(high / (low or 1.0), 1.0) ** np.linspace(0.0, 1.0, count)
    return found


class _PathTables(NamedTuple):
    """Result of the dynamic program."""

    cost_s: Floats
    """[trial, device] cost of the cheapest path that ends on the device."""
    start: Indices
    """[cut, trial, device] start of the run that ends at the cut."""
    previous: Indices
    """[cut, trial, device] device before the run that begins at the cut."""


class PathProgram:
    """Dynamic program over one linear order.

    simple: each device has at most one run; a state remembers its cheapest path only, so that the result is good, but
    not always optimal. Otherwise devices may repeat: the result is no plan but, on a chain, a lower bound.
    byte_weight: cost of a byte in place of compression, for bounds. deadline: nothing is found once it expires.
    """

    def __init__(
        self,
        instance: Instance,
        line: LinearOrder,
        *,
        simple: bool = True,
        byte_weight: float | None = None,
        deadline: Deadline = NO_DEADLINE,
    ) -> None:
        self.line, self.simple, self.codec, self.byte_weight = line, simple, instance.codec, byte_weight
        self.deadline = deadline
        self.alpha, self.beta = instance.alpha.T.copy(), instance.beta.T.copy()
        self.speed, self.budget_bytes = instance.speed, instance.budget_bytes
        self.same = np.eye(instance.devices, dtype=bool)

    def costs(self, limits: TrialLimits) -> Floats:
        """Return [trial] the cost of the cheapest path; infinite if there is none, 0 (a valid bound) if time ran
        out."""
        found = self._tables(limits)
        return np.zeros(len(limits.compute_s)) if found is None else np.asarray(found.cost_s.min(axis=1))

    def paths(self, limits: TrialLimits) -> list[DevicePath]:
        """Return the cheapest path of every feasible trial, without duplicates."""
        tables = self._tables(limits)
        if tables is None:
            return []
        last, start, before = tables
        found: dict[tuple[tuple[int, ...], tuple[int, ...]], None] = {}
        for trial in np.flatnonzero(np.isfinite(last.min(axis=1))).tolist():
            found[self._trace_back(start[:, trial], before[:, trial], int(np.argmin(last[trial])))] = None
        return [DevicePath(list(devices), list(ends)) for devices, ends in found]

    def _tables(self, limits: TrialLimits) -> _PathTables | None:
        """Run the program; return None if time ran out."""
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
            _replace_expired_starts(begun, best, best_s, first[cut], cut)
            start[cut] = best
            entered = (best_s + work_s[cut])[:, None, :] + self._entering(cut, limits)
            if self.simple:
                visited = used[best, across, device]
                entered[visited.transpose(0, 2, 1)] = np.inf
            before = entered.argmin(axis=2)
            previous[cut] = before
            begun[cut] = entered[across, device, before] - work_s[cut]
            if self.simple:
                used[cut] = visited[across, before] | self.same
            better = begun[cut] < best_s
            best_s[better] = begun[cut][better]
            best[better] = cut
        _replace_expired_starts(begun, best, best_s, first[cuts], cuts)
        start[cuts] = best
        return _PathTables(best_s + work_s[cuts], start, previous)

    def _first_starts(self, compute_s: Floats) -> Ints:
        """Return [cut, trial, device] the earliest start of a run that ends at the cut, by work and memory."""
        flops, memory = self.line.flops, self.line.memory_bytes
        room = np.minimum(compute_s[:, None] * self.speed * (1 + SLACK), flops[-1])
        by_work = np.searchsorted(flops, flops[:, None, None] - room)
        by_memory = np.searchsorted(memory, memory[:, None] - self.budget_bytes)
        found: Ints = np.maximum(by_work, by_memory[:, None, :])
        return found

    def _entering(self, cut: int, limits: TrialLimits) -> Floats:
        """Return [trial, to, from] the seconds of receiving what crosses the cut; infinite if a limit excludes it."""
        crossing_bytes = self.line.crossing_bytes[cut]
        alpha_s = self.alpha * self.line.crossing[cut]
        dense_s = alpha_s + self.beta * crossing_bytes
        closed = self.same[None]
        if self.byte_weight is not None:
            seconds = (alpha_s + self.beta * (crossing_bytes * self.byte_weight))[None]
        elif not self.codec.ratio:
            seconds = dense_s[None]
        else:
            slowest_s = limits.link_s[:, None, None]
            seconds = alpha_s + self.beta * self.codec.wire_bytes(crossing_bytes, dense_s[None], slowest_s)
            closed = closed | (dense_s > slowest_s * (1 + SLACK))
        allowed = limits.receive_s[:, None, None] * (1 + SLACK)
        found: Floats = np.where(closed | (seconds > allowed), np.inf, seconds)
        return found

    def _trace_back(self, start: Indices, before: Indices, place: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        devices, ends, cut = list[int](), list[int](), self.line.cuts
        while True:
            devices.append(place)
            ends.append(cut)
            cut = int(start[cut, place])
            if cut == 0:
                return tuple(devices[::-1]), tuple(ends[::-1])
            place = int(before[cut, place])


def _replace_expired_starts(begun: Floats, best: Ints, best_s: Floats, first: Ints, cut: int) -> None:
    """Choose the best start before `cut` anew where the current one lies before `first`, the earliest allowed."""
    late = np.nonzero(best < first)
    if not len(late[0]):
        return
    low = min(int(first[late].min()), cut - 1)
    open_s = begun[low:cut, late[0], late[1]]
    open_s = np.where(np.arange(low, cut)[:, None] < first[late], np.inf, open_s)
    chosen = open_s.argmin(axis=0)
    best_s[late] = open_s[chosen, np.arange(len(chosen))]
    best[late] = np.where(np.isfinite(best_s[late]), chosen + low, np.minimum(first[late], cut - 1))


class _DeviceTable(NamedTuple):
    """Table of one device of the order: arrays [trial, cut]."""

    cost_s: Floats
    begin: Ints
    """Start of the run that ends at the cut."""
    before: Ints
    """Position in the order of the device before a run that begins at the cut; -1: none."""


def best_cuts(
    instance: Instance,
    line: LinearOrder,
    device_order: list[int],
    limits: TrialLimits,
    *,
    use_all: bool,
    deadline: Deadline = NO_DEADLINE,
) -> list[DevicePath]:
    """Return the cheapest cuts under each of the limits, for those that are feasible, without duplicates.

    use_all: every device of the order has at least one operator; else some may be left out. Empty if time ran out.
    """
    return _CutProgram(instance, line, device_order, limits).paths(use_all, deadline)


class _CutProgram:
    """Dynamic program over the cuts of one linear order for a given order of devices."""

    def __init__(self, instance: Instance, line: LinearOrder, device_order: list[int], limits: TrialLimits) -> None:
        self.instance, self.line, self.device_order, self.limits = instance, line, device_order, limits

    def paths(self, use_all: bool, deadline: Deadline) -> list[DevicePath]:
        """Return the cheapest path of every feasible trial, without duplicates; as `best_cuts` describes."""
        line, tables = self.line, list[_DeviceTable]()
        for position, device in enumerate(self.device_order):
            if deadline.expired:
                return []
            entered, before = self._entered(position, tables[-1:] if use_all else tables)
            if position == 0 or not use_all:
                entered[:, 0], before[:, 0] = 0.0, -1
            work_s = line.flops / self.instance.speed[device]
            begin = _argmin_from(entered - work_s, self._first_starts(device))
            cost_s = np.take_along_axis(entered - work_s, begin, axis=1) + work_s
            cost_s[begin >= np.arange(line.cuts + 1)] = np.inf  # a run has at least one operator
            tables.append(_DeviceTable(cost_s, begin, before))
        return self._distinct_paths(tables, use_all)

    def _entered(self, position: int, tables: list[_DeviceTable]) -> tuple[Floats, Ints]:
        """Return [trial, cut] the least cost up to a run that begins there, and the position of the sender.

        tables: of the possible senders, the last of which precedes `position`.
        """
        shape = (len(self.limits.compute_s), self.line.cuts + 1)
        best, sender = np.full(shape, np.inf), np.full(shape, -1)
        for other in range(position - len(tables), position):
            hop_s = self._hop_s(self.device_order[other], self.device_order[position])
            cost_s = tables[other - position].cost_s + hop_s
            better = cost_s < best
            best[better] = cost_s[better]
            sender[better] = other
        return best, sender

    def _hop_s(self, sender: int, receiver: int) -> Floats:
        """Return [trial, cut] the seconds of sending what crosses the cut; infinite if a limit excludes it."""
        instance, line = self.instance, self.line
        alpha_s, beta = instance.alpha[sender, receiver] * line.crossing, instance.beta[sender, receiver]
        dense_s = (alpha_s + beta * line.crossing_bytes)[None]
        seconds, closed = dense_s, np.zeros((1, 1), bool)
        if instance.codec.ratio:
            slowest_s = self.limits.link_s[:, None]
            seconds = alpha_s + beta * instance.codec.wire_bytes(line.crossing_bytes, dense_s, slowest_s)
            closed = dense_s > slowest_s * (1 + SLACK)
        excluded = closed | (seconds > self.limits.receive_s[:, None] * (1 + SLACK))
        found: Floats = np.where(excluded, np.inf, seconds)
        return found

    def _first_starts(self, device: int) -> Ints:
        """Return [trial, cut] the earliest start of the device's run that ends at the cut."""
        line, instance = self.line, self.instance
        room = np.minimum(self.limits.compute_s * instance.speed[device] * (1 + SLACK), line.flops[-1])
        by_work = np.searchsorted(line.flops, line.flops - room[:, None])
        by_memory = np.searchsorted(line.memory_bytes, line.memory_bytes - instance.budget_bytes[device])
        found: Ints = np.maximum(by_work, by_memory)
        return found

    def _distinct_paths(self, tables: list[_DeviceTable], use_all: bool) -> list[DevicePath]:
        """Trace the cheapest path of each feasible trial back from the end of the order."""
        last = np.array([table.cost_s[:, self.line.cuts] for table in tables])
        if use_all:
            last[:-1] = np.inf
        found: dict[tuple[tuple[int, ...], tuple[int, ...]], None] = {}
        for trial in np.flatnonzero(np.isfinite(last.min(axis=0))).tolist():
            position, cut = int(last[:, trial].argmin()), self.line.cuts
            devices, ends = list[int](), list[int]()
            while position >= 0:
                devices.append(self.device_order[position])
                ends.append(cut)
                cut = int(tables[position].begin[trial, cut])
                position = int(tables[position].before[trial, cut])
            found[tuple(devices[::-1]), tuple(ends[::-1])] = None
        return [DevicePath(list(devices), list(ends)) for devices, ends in found]


def _argmin_from(values: Floats, first: Ints) -> Ints:
    """Return [row, i] the index of the least of values[row, first[row, i]:i], or i if that is empty.

    Uses sparse tables: any range is the union of two overlapping ranges of length 1, 2, 4, ...
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
