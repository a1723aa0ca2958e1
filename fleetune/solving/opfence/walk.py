"""Which devices, in which order, with which cuts: all at once, by a dynamic program over the line.

State: the cut reached and the device that ran the last run of operators; a run begins with what crosses its cut coming
from the device before it. Many limits on the slowest device (and guesses of the slowest link, where links are thinned
by it) are computed side by side, because eq. (3)'s maximum does not add up along the line but is plain under a limit.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fleetune.solving.opfence.case import Case, Ints
from fleetune.solving.opfence.line import Line
from fleetune.solving.opfence.watch import ENDLESS, Watch
from fleetune.solving.proofs import Floats

SLACK = 1e-9
"""Relative: limits that a plan was found to have must not be missed by rounding."""
LEAST = 1e-5
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


class Trial(NamedTuple):
    """A sequence of runs found."""

    devices: list[int]
    ends: list[int]
    """Cuts, the last is the line's."""


def spread(low: float, high: float, count: int) -> Floats:
    """Numbers from low (or a small part of high, if that is more) to high, each so many times the one before."""
    low = max(low, LEAST * high)
    found: Floats = low * np.maximum(high / (low or 1.0), 1.0) ** np.linspace(0.0, 1.0, count)
    return found


class Walk:
    """The program over one line.

    once: each device in one run at most; of each state, the cheapest way there is all that is remembered, which is good
    but not always best. Otherwise devices may come again: what is found is no plan but, on a chain, below every plan.
    weight: what a byte counts instead of being thinned, for bounds. watch: what it ends finds nothing.
    """

    def __init__(
        self, case: Case, line: Line, *, once: bool = True, weight: float | None = None, watch: Watch = ENDLESS
    ) -> None:
        self.line, self.once, self.codec, self.weight = line, once, case.codec, weight
        self.watch = watch
        self.alpha, self.beta = case.alpha.T.copy(), case.beta.T.copy()
        self.speed, self.budget_bytes = case.speed, case.budget_bytes
        self.same = np.eye(case.devices, dtype=bool)

    def costs(self, limits: Limits) -> Floats:
        """[trial]: sum over devices of computing and receiving in the cheapest walk; infinite where there is none, and
        0, which no walk is below, where the watch ended it."""
        found = self._run(limits)
        return np.zeros(len(limits.compute_s)) if found is None else np.asarray(found[0].min(axis=1))

    def trials(self, limits: Limits) -> list[Trial]:
        """The cheapest walk of every trial that has one, without repetition."""
        walked = self._run(limits)
        if walked is None:
            return []
        last, start, before = walked
        found: dict[tuple[tuple[int, ...], tuple[int, ...]], None] = {}
        for trial in np.flatnonzero(np.isfinite(last.min(axis=1))).tolist():
            found[self._back(start[:, trial], before[:, trial], int(np.argmin(last[trial])))] = None
        return [Trial(list(devices), list(ends)) for devices, ends in found]

    def _run(self, limits: Limits) -> tuple[Floats, Places, Places] | None:
        """[trial, device] of the cost at the end; [cut, trial, device]: where the run that ends there began, and which
        device came before a run that begins there. None where the watch ended it."""
        if self.watch.over:
            return None
        cuts, trials, devices = self.line.cuts, len(limits.compute_s), len(self.speed)
        first = self._first_starts(limits.compute_s)
        work_s = self.line.flops[:, None] / self.speed
        begun = np.full((cuts, trials, devices), np.inf)
        begun[0] = 0.0
        start = np.zeros((cuts + 1, trials, devices), np.int32)
        previous = np.full((cuts, trials, devices), -1, np.int32)
        used = np.zeros((cuts, trials, devices, devices) if self.once else (1, 1, devices, devices), bool)
        used[0] = self.same
        best, best_s = np.zeros((trials, devices), np.int64), begun[0].copy()
        across, device = np.arange(trials)[:, None], np.arange(devices)
        for cut in range(1, cuts):
            if self.watch.over:
                return None
            _expire(begun, best, best_s, first[cut], cut)
            start[cut] = best
            entered = (best_s + work_s[cut])[:, None, :] + self._entering(cut, limits)
            if self.once:
                behind = used[best, across, device]
                entered[behind.transpose(0, 2, 1)] = np.inf
            before = entered.argmin(axis=2)
            previous[cut] = before
            begun[cut] = entered[across, device, before] - work_s[cut]
            if self.once:
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
