"""Polynomial algorithms for one machine with preemption and release dates.

`earliest_due_date` (W. A. Horn, 1974) meets all due dates if any schedule does. `jackson_bound` (J. R. Jackson, 1955)
minimises the largest end + tail by serving the longest tail first.

`minimise_max_cost` is K. R. Baker, E. L. Lawler, J. K. Lenstra, A. H. G. Rinnooy Kan, "Preemptive scheduling of a
single machine to minimize maximum cost subject to release dates and precedence constraints", Operations Research 31(2),
1983: 1|pmtn, r_j|f_max in O(n^2). It is Algorithm 2 of J. Tirana et al., "Workflow Optimization for Parallel Split
Learning", INFOCOM 2024, for the backwards once the forwards are fixed. Two corrections: a backward is ready l + l'
after its forward ended (Theorem 2 prints c^f + l + l', but c^f contains l already, eq. (13)), and the slots of forwards
are not free. Busy time is cut out of the clock; the algorithm stays correct, because the moment at which e free units
have passed does not decrease in e.
"""

import heapq
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from fleetune.solving.split.instance import Instance
from fleetune.solving.split.schedule import BACKWARD, FORWARD, TaskRow


class RelaxedSchedule(NamedTuple):
    """First start and last end of each task, and the interruptions."""

    start: list[int]
    end: list[int]
    interrupted: list[tuple[int, int]]
    """Pairs of an interrupted task and the task that ran instead."""


def earliest_due_date(head: Sequence[int], length: Sequence[int], due: Sequence[int]) -> RelaxedSchedule | None:
    """Return the preemptive schedule that meets all due dates, or None if none does."""
    count = len(head)
    order = sorted(range(count), key=head.__getitem__)
    start, end_of, left = [-1] * count, [0] * count, list(length)
    interrupted: list[tuple[int, int]] = []
    waiting: list[tuple[int, int, int]] = []
    now, at, running = 0, 0, -1
    while at < count or waiting:
        if not waiting:
            now = max(now, head[order[at]])
        while at < count and head[order[at]] <= now:
            heapq.heappush(waiting, (due[order[at]], at, order[at]))
            at += 1
        limit, _, task = waiting[0]
        if running >= 0 and running != task:
            interrupted.append((running, task))
        if start[task] < 0:
            start[task] = now
        end = now + left[task]
        upto = head[order[at]] if at < count else end
        if end <= upto:
            if end > limit:
                return None
            heapq.heappop(waiting)
            end_of[task], now, running = end, end, -1
        else:
            left[task] -= upto - now
            now, running = upto, task
    return RelaxedSchedule(start, end_of, interrupted)


def jackson_bound(head: Sequence[int], length: Sequence[int], tail: Sequence[int]) -> int:
    """Return the least possible largest end + tail with preemption."""
    count = len(head)
    order = sorted(range(count), key=head.__getitem__)
    waiting: list[tuple[int, int]] = []
    left = list(length)
    now, at, value = 0, 0, 0
    while at < count or waiting:
        if not waiting:
            now = max(now, head[order[at]])
        while at < count and head[order[at]] <= now:
            heapq.heappush(waiting, (-tail[order[at]], order[at]))
            at += 1
        _, task = waiting[0]
        end = now + left[task]
        if at < count and head[order[at]] < end:
            left[task] -= head[order[at]] - now
            now = head[order[at]]
        else:
            heapq.heappop(waiting)
            value, now = max(value, end + tail[task]), end
    return value


Span = tuple[int, int]
"""[start, end)"""


class Job(NamedTuple):
    """A preemptible task."""

    release: int
    length: int
    """At least 1."""
    tail: int
    """The job's cost is its end + tail."""


def minimise_max_cost(jobs: Sequence[Job], busy: Iterable[Span] = ()) -> list[list[Span]]:
    """Return the spans of each job, outside `busy`, with the least largest end + tail.

    busy: spans in any order, which may touch but not overlap. Switch costs are not part of the cost.
    """
    clock = _FreeClock(busy)
    released = [clock.free_before(job.release) for job in jobs]
    order = sorted(range(len(jobs)), key=lambda k: (released[k], jobs[k].release, k))
    spans: list[list[Span]] = [[] for _ in jobs]
    waiting = _blocks(order, released, jobs)
    while waiting:
        block = waiting.pop()
        # any order fills [start, end); the job with the shortest tail ends last
        last = min(block.jobs, key=lambda k: (jobs[k].tail, -released[k], k))
        within = _blocks([k for k in block.jobs if k != last], released, jobs)
        spans[last] = _gaps(block, within)
        waiting += within
    return [clock.to_real(one) for one in spans]


def schedule_backwards(instance: Instance, helper: int, forwards: Iterable[TaskRow]) -> list[TaskRow]:
    """Return the forwards of one helper and, in the slots they leave free, their backwards with the least makespan.

    Optimal for these forwards without switch costs. It interrupts tasks, so it is for preemptive problems only.
    """
    rows = list(forwards)
    ends: dict[int, int] = {}
    for row in rows:
        assert row.direction == FORWARD
        ends[row.client] = max(ends.get(row.client, 0), row.end)
    clients = sorted(ends)
    jobs = [
        Job(
            ends[j] + int(instance.turnaround[helper, j]),
            int(instance.backward[helper, j]),
            int(instance.tail[helper, j]),
        )
        for j in clients
    ]
    spans = minimise_max_cost(jobs, ((row.start, row.end) for row in rows))
    return rows + [TaskRow(j, BACKWARD, *span) for j, ran in zip(clients, spans, strict=True) for span in ran]


class _Block(NamedTuple):
    """Jobs by release that keep the helper busy from start to end, in free time."""

    start: int
    end: int
    jobs: list[int]


def _blocks(order: Iterable[int], released: Sequence[int], jobs: Sequence[Job]) -> list[_Block]:
    blocks: list[_Block] = []
    for k in order:
        if blocks and released[k] < blocks[-1].end:
            blocks[-1].jobs.append(k)
            blocks[-1] = blocks[-1]._replace(end=blocks[-1].end + jobs[k].length)
        else:
            blocks.append(_Block(released[k], released[k] + jobs[k].length, [k]))
    return blocks


def _gaps(block: _Block, within: Iterable[_Block]) -> list[Span]:
    """Return the parts of the block that its sub-blocks leave free."""
    gaps, at = [], block.start
    for part in within:
        if part.start > at:
            gaps.append((at, part.start))
        at = part.end
    if at < block.end:
        gaps.append((at, block.end))
    return gaps


class _FreeClock:
    """Conversion between real time and free time, which skips the busy spans."""

    def __init__(self, busy: Iterable[Span]) -> None:
        self.starts: list[int] = []
        self.ends: list[int] = []
        for start, end in sorted(busy):
            if self.ends and start == self.ends[-1]:
                self.ends[-1] = end
            else:
                self.starts.append(start)
                self.ends.append(end)
        self.free = [0]
        """Free time before each busy span, and after the last."""
        for index, start in enumerate(self.starts):
            self.free.append(self.free[-1] + start - (self.ends[index - 1] if index else 0))
        del self.free[0]

    def free_before(self, time: int) -> int:
        """Return the free units in [0, time)."""
        index = bisect_right(self.starts, time)
        if index == 0:
            return time
        return self.free[index - 1] + max(0, time - self.ends[index - 1])

    def to_real(self, spans: Iterable[Span]) -> list[Span]:
        """Convert spans of free time to real time."""
        found = []
        for start, end in spans:
            at = start
            index = bisect_right(self.free, start)
            while at < end:
                stop = min(end, self.free[index]) if index < len(self.free) else end
                shift = self.ends[index - 1] - self.free[index - 1] if index else 0
                found.append((at + shift, stop + shift))
                at, index = stop, index + 1
        return found
