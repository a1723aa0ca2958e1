"""One machine, each task with a window of its own, interruptions free: two questions that a rule answers at once.

Serving the waiting task with the earliest due date keeps all due dates if any schedule does (W. A. Horn, 1974); serving
the one with the longest tail makes the largest end + tail least (J. R. Jackson, 1955, for tasks that may be
interrupted).
"""

import heapq
from collections.abc import Sequence
from typing import NamedTuple


class Relaxed(NamedTuple):
    start: list[int]
    end: list[int]
    interrupted: list[tuple[int, int]]
    """A task, and the one that ran in its stead."""


def earliest_due_first(head: Sequence[int], length: Sequence[int], due: Sequence[int]) -> Relaxed | None:
    """The schedule with interruptions that keeps all due dates if any does; None: none does."""
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
    return Relaxed(start, end_of, interrupted)


def jackson(head: Sequence[int], length: Sequence[int], tail: Sequence[int]) -> int:
    """The least largest end + tail with interruptions: the longest tail first."""
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
