"""One helper with its clients given: the least makespan, by branch and bound on windows.

The one-machine problem with heads, tails and delays between two tasks of a client, "the one-machine problem with
delayed precedence constraints" of the shifting bottleneck (E. Balas, J. K. Lenstra, A. Vazacopoulos, Management Science
41(1), 1995), here also with interruptions. A node is a window for each task. Its relaxation forgets that a client's two
tasks are tied and that tasks may not be interrupted: then serving the earliest due task first decides at once whether a
makespan can be kept (J. R. Jackson, 1955; W. A. Horn, 1974). Where its schedule breaks a tie, the forward either ends
sooner than in it, or the backward starts only after that; where it interrupts what must not be, one of the two tasks
goes first; where an interruption costs more than it may, the task is not interrupted at all or pays for one more
switch. Windows shrink until the relaxation's schedule is a plan or impossible. Plans also come from serving by due
dates for real.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from fleetune.solving.split.case import Case
from fleetune.solving.split.relaxation import Relaxed, earliest_due_first, jackson
from fleetune.solving.split.schedule import BACKWARD, FORWARD, Row, merged
from fleetune.solving.split.windows import FAR, Times, Windows

Segment = tuple[int, int, int]
"""Task, start, end."""


class Found(NamedTuple):
    """What is known of a helper with a set of clients."""

    value: int
    """Makespan of `rows`; FAR: none below the limit was found."""
    rows: list[Row]
    bound: int
    """No schedule has a shorter makespan."""

    @property
    def proven(self) -> bool:
        """Nothing is left to look for."""
        return self.bound >= self.value


class Lane:
    """One helper, ready for many sets of clients."""

    def __init__(self, case: Case, helper: int, *, preemptive: bool | None = None) -> None:
        """preemptive: None: as the case says."""
        times = Times.of(case, helper)
        self.times = times if preemptive is None else times._replace(preemptive=preemptive)
        self.effort = 0
        """Tasks put in order so far: the measure of work."""

    def bound(self, clients: Sequence[int]) -> int:
        """Jackson's bound: the least makespan were a client's two tasks not tied and all could be interrupted."""
        root = Windows.root(self.times, clients)
        self.effort += len(clients)
        return jackson(root.head, root.length, root.tail)

    def quick(self, clients: Sequence[int]) -> Found:
        """Plans by rules alone."""
        return self.solve(clients, nodes=0)

    def solve(self, clients: Sequence[int], *, nodes: int, below: int = FAR, enough: int = 0) -> Found:
        """The best schedule that `nodes` nodes find with a makespan under `below`; it stops at one of at most `enough`.

        With enough nodes it is the least there is, or none there is under `below`: then `bound` says so.
        """
        if not clients:
            return Found(0, [], 0)
        search = _Search(self.times, clients, below)
        found = search.run(nodes, enough)
        self.effort += len(clients) * (4 + 3 * search.looked_at)
        if nodes and not found.proven and self.times.preemptive and self.times.switch_cost:
            return self._as_if_free(clients, nodes, below, found)
        return found

    def _as_if_free(self, clients: Sequence[int], nodes: int, below: int, known: Found) -> Found:
        """The best of what is known and the best schedule were interruptions free: nobody's makespan is less than that.

        It is a plan as well, once it pays for them, and is found and proven soon whatever the unit of time is.
        """
        if known.value < FAR:
            below = min(below, known.value)
        search = _Search(self.times._replace(switch_cost=0), clients, below)
        free = search.run(nodes, 0)
        self.effort += len(clients) * (4 + 3 * search.looked_at)
        bound = max(known.bound, free.bound)
        if free.rows:
            pieces = Counter(row.client for row in free.rows)
            ends = {row.client: row.end for row in free.rows if row.direction == BACKWARD}  # rows are by start
            cost, tail = self.times.switch_cost, self.times.tail
            value = max(end + tail[j] + (pieces[j] - 2) * cost for j, end in ends.items())
            if value < below:
                return Found(value, free.rows, bound)
        return known._replace(bound=bound)


class _Search:
    def __init__(self, times: Times, clients: Sequence[int], below: int) -> None:
        self.times, self.clients, self.count = times, list(clients), len(clients)
        self.between = [times.between[j] for j in clients]
        self.best, self.segments = below, list[Segment]()
        self.looked_at = 0
        """Nodes."""
        self.doubtful = FAR
        """No plan is shorter in any of the leaves that were neither a plan nor ruled out."""

    def run(self, nodes: int, enough: int) -> Found:
        root = Windows.root(self.times, self.clients)
        least = jackson(root.head, root.length, root.tail)
        self._start(root)
        stack = [root]
        while stack and self.best > max(least, enough) and nodes > 0:
            nodes -= 1
            self.looked_at += 1
            self._expand(stack.pop(), stack)
        value = self.best if self.segments else FAR
        if self.best <= least or not stack:
            least = max(least, min(self.best, self.doubtful))
        return Found(value, self._rows(), least)

    def _start(self, root: Windows) -> None:
        """Plans by rules: longest tail first, with and without interruptions, and first come first served."""
        longest_tail, whole = [-x for x in root.tail], [True] * len(root.tail)
        self._try(root, longest_tail, whole)
        self._try(root, None, whole)
        if self.times.preemptive:
            self._try(root, longest_tail, root.solid)

    def _expand(self, node: Windows, stack: list[Windows]) -> None:
        """Rule the node out, find a plan, or put its children on the stack, the more promising last."""
        horizon = self.best - 1
        due = [min(cap, horizon - tail) for cap, tail in zip(node.cap, node.tail, strict=True)]
        relaxed = earliest_due_first(node.head, node.length, due)
        if relaxed is None:
            return
        self._try(node, due, node.solid)
        if self.best <= horizon:
            # a better plan: the node is looked at again under the shorter horizon
            stack.append(node)
            return
        children = self._branch(node, relaxed)
        if children is None:
            self.doubtful = min(self.doubtful, jackson(node.head, node.length, node.tail))
            return
        stack += [child for child in children if child.shrink(self.between, self.best - 1)]

    def _branch(self, node: Windows, relaxed: Relaxed) -> list[Windows] | None:
        """Two nodes that hold every plan of this one; the first is looked at last. None: none are known."""
        late, worst = 0, -1
        for k in range(self.count):
            gap = relaxed.end[k] + self.between[k] - relaxed.start[k + self.count]
            if gap > late:
                late, worst = gap, k
        if worst >= 0:
            # sooner than that is a real difference; splitting at the backward's start instead creeps on by single units
            return self._untie(node, worst, relaxed.end[worst] - 1)
        for k, other in relaxed.interrupted:
            if node.solid[k]:
                if node.solid[other]:
                    return [self._ordered(node, k, other), self._ordered(node, other, k)]
                return self._settle(node, other)
        if self.times.switch_cost:
            for k, _ in relaxed.interrupted:
                if not node.charged[k]:
                    return self._settle(node, k)
        return None

    def _untie(self, node: Windows, k: int, end: int) -> list[Windows]:
        """The forward ends by then, or later."""
        by, later = node.copy(), node.copy()
        by.cap[k] = min(by.cap[k], end)
        at = k + self.count
        later.head[at] = max(later.head[at], end + 1 + self.between[k])
        return [later, by]

    def _ordered(self, node: Windows, first: int, second: int) -> Windows:
        return node.copy()._replace(orders=(*node.orders, (first, second)))

    def _settle(self, node: Windows, k: int) -> list[Windows] | None:
        """The task is not interrupted, or pays for one more switch."""
        if node.charged[k]:
            return None
        whole, pays = node.copy(), node.copy()
        whole.solid[k] = True
        pays.charged[k] = 1
        for task in (k % self.count, k % self.count + self.count):
            pays.tail[task] += self.times.switch_cost
        return [pays, whole]

    def _try(self, node: Windows, rank: Sequence[int] | None, solid: Sequence[bool]) -> None:
        """A plan by serving the waiting task of least rank (None: first come first served); kept if it is better."""
        segments, value = self._serve(node, rank, solid)
        if value < self.best:
            self.best, self.segments = value, segments

    def _serve(self, node: Windows, rank: Sequence[int] | None, solid: Sequence[bool]) -> tuple[list[Segment], int]:
        count, times, between = self.count, self.times, self.between
        coming = [(node.head[k], k) for k in range(count)]
        heapq.heapify(coming)
        waiting: list[tuple[int, int, int]] = []
        left, pieces = node.length[:], [0] * count
        segments: list[Segment] = []
        now, value, order = 0, 0, 0
        while coming or waiting:
            if not waiting:
                now = max(now, coming[0][0])
            while coming and coming[0][0] <= now:
                ready, task = heapq.heappop(coming)
                order += 1
                heapq.heappush(waiting, (ready if rank is None else rank[task], order, task))
            task = waiting[0][2]
            end = now + left[task]
            if coming and not solid[task]:
                end = min(end, coming[0][0])
            left[task] -= end - now
            if segments and segments[-1][0] == task and segments[-1][2] == now:
                segments[-1] = (task, segments[-1][1], end)
            else:
                segments.append((task, now, end))
                pieces[task % count] += 1
            if not left[task]:
                heapq.heappop(waiting)
                if task < count:
                    heapq.heappush(coming, (max(node.head[task + count], end + between[task]), task + count))
                else:
                    k = task - count
                    value = max(value, end + times.tail[self.clients[k]] + (pieces[k] - 2) * times.switch_cost)
            now = end
        return segments, value

    def _rows(self) -> list[Row]:
        count = self.count
        return merged(
            Row(self.clients[k % count], BACKWARD if k >= count else FORWARD, start, end)
            for k, start, end in self.segments
        )
