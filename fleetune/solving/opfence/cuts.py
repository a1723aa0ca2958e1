"""The best cuts of a line for devices in a given order, all cuts of a device side by side.

f[k, i] is the least sum of computing and receiving when device k ends a run at cut i; its run begins at a cut j within
what its limits allow, where what crosses j comes from the device that ended there.
"""

from typing import NamedTuple

import numpy as np

from fleetune.solving.opfence.case import Case, Ints
from fleetune.solving.opfence.line import Line
from fleetune.solving.opfence.walk import SLACK, Limits, Trial
from fleetune.solving.opfence.watch import ENDLESS, Watch
from fleetune.solving.proofs import Floats


class _Reached(NamedTuple):
    """By device in the row: [trial, cut] each."""

    cost_s: Floats
    begin: Ints
    """Where the run that ends at the cut began."""
    before: Ints
    """Place in the row of the device before a run that begins at the cut; -1: none."""


def cut(case: Case, line: Line, row: list[int], limits: Limits, *, every: bool, watch: Watch = ENDLESS) -> list[Trial]:
    """The cheapest cuts within each of the limits that can be kept, without repetition.

    every: each device of the row has at least one operator; else some may be left out. None where the watch ended it.
    """
    reached: list[_Reached] = []
    for place, device in enumerate(row):
        if watch.over:
            return []
        entered, before = _entered(case, line, (row, place), limits, reached[-1:] if every else reached)
        if place == 0 or not every:
            entered[:, 0], before[:, 0] = 0.0, -1
        work_s = line.flops / case.speed[device]
        begin = _lowest(entered - work_s, _first_starts(case, line, device, limits.compute_s))
        cost_s = np.take_along_axis(entered - work_s, begin, axis=1) + work_s
        cost_s[begin >= np.arange(line.cuts + 1)] = np.inf  # a run has at least one operator
        reached.append(_Reached(cost_s, begin, before))
    return _trials(row, reached, line.cuts, every)


def _entered(
    case: Case, line: Line, at: tuple[list[int], int], limits: Limits, reached: list[_Reached]
) -> tuple[Floats, Ints]:
    """[trial, cut]: the least cost with what crosses the cut received, and the place in the row of who sends it."""
    row, place = at
    shape = (len(limits.compute_s), line.cuts + 1)
    best, sender = np.full(shape, np.inf), np.full(shape, -1)
    for other in range(place - len(reached), place):
        cost_s = reached[other - place].cost_s + _hop_s(case, line, (row[other], row[place]), limits)
        better = cost_s < best
        best[better] = cost_s[better]
        sender[better] = other
    return best, sender


def _hop_s(case: Case, line: Line, link: tuple[int, int], limits: Limits) -> Floats:
    """[trial, cut]: seconds of sending what crosses; infinite where a limit forbids it."""
    alpha_s, beta = case.alpha[link] * line.crossing, case.beta[link]
    dense_s = (alpha_s + beta * line.crossing_bytes)[None]
    seconds, closed = dense_s, np.zeros((1, 1), bool)
    if case.codec.ratio:
        slowest_s = limits.link_s[:, None]
        seconds = alpha_s + beta * case.codec.wire_bytes(line.crossing_bytes, dense_s, slowest_s)
        closed = dense_s > slowest_s * (1 + SLACK)
    found: Floats = np.where(closed | (seconds > limits.receive_s[:, None] * (1 + SLACK)), np.inf, seconds)
    return found


def _first_starts(case: Case, line: Line, device: int, compute_s: Floats) -> Ints:
    """[trial, cut]: where a run of the device that ends at the cut may begin at the earliest."""
    room = np.minimum(compute_s * case.speed[device] * (1 + SLACK), line.flops[-1])
    by_work = np.searchsorted(line.flops, line.flops - room[:, None])
    by_memory = np.searchsorted(line.memory_bytes, line.memory_bytes - case.budget_bytes[device])
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


def _trials(row: list[int], reached: list[_Reached], cuts: int, every: bool) -> list[Trial]:
    last = np.array([one.cost_s[:, cuts] for one in reached])
    if every:
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
    return [Trial(list(devices), list(ends)) for devices, ends in found]
