"""Branch and bound for one helper with given clients: the least makespan.

"The one-machine problem with delayed precedence constraints" of the shifting bottleneck (E. Balas, J. K. Lenstra, A.
Vazacopoulos, Management Science 41(1), 1995): heads, tails and a delay between the two tasks of a client; here also
with preemption. A node is a time window per task. Its relaxation drops the delays and allows preemption, so that
earliest due date decides at once whether a makespan can be met (J. R. Jackson, 1955; W. A. Horn, 1974). If its schedule
violates a delay, the forward ends earlier, or the backward starts later; if it interrupts a task that must not be, one
of the two tasks goes first; if an interruption costs too much, the task is not interrupted or pays for one more switch.
Windows shrink until the relaxed schedule is a plan or infeasible. Dispatching by due dates yields further plans.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from fleetune.solving.split.instance import Instance
from fleetune.solving.split.preemptive import RelaxedSchedule, earliest_due_date, jackson_bound
from fleetune.solving.split.schedule import BACKWARD, FORWARD, TaskRow, merged

INFINITE_TIME = 2**62
"""Later than every time."""


class MachineTimes(NamedTuple):
    """Times of one helper, as lists by client."""

    release: list[int]
    lengths: tuple[list[int], list[int]]
    """Forward, backward."""
    turnaround: list[int]
    tail: list[int]
    """Two switches included."""
    switch_cost: int
    preemptive: bool

    @classmethod
    def from_instance(cls, instance: Instance, helper: int) -> MachineTimes:
        """Convert a helper's times to lists, for plain loops."""
        return cls(
            instance.release[helper].tolist(),
            (instance.forward[helper].tolist(), instance.backward[helper].tolist()),
            instance.turnaround[helper].tolist(),
            (instance.tail[helper] + 2 * instance.switch_cost[helper]).tolist(),
            int(instance.switch_cost[helper]),
            instance.preemptive,
        )


class TaskWindows(NamedTuple):
    """Windows of the tasks of n clients, forwards first: lists [2 n]."""

    head: list[int]
    length: list[int]
    tail: list[int]
    """Least time from the task's end to the client's completion."""
    latest_end: list[int]
    """Latest end for any makespan."""
    uninterruptible: list[bool]
    """True for tasks that may not be interrupted."""
    charged: list[int]
    """Interruptions that the tail already pays for."""
    orders: tuple[tuple[int, int], ...]
    """Pairs of tasks of which the first ends before the second starts."""

    @classmethod
    def root(cls, times: MachineTimes, clients: Sequence[int]) -> TaskWindows:
        """Return the windows that hold in every schedule of these clients."""
        forward, backward = ([lengths[j] for j in clients] for lengths in times.lengths)
        head = [times.release[j] for j in clients]
        tail = [times.tail[j] for j in clients]
        turnaround = [times.turnaround[j] for j in clients]
        count = len(clients)
        return cls(
            head + [h + p + d for h, p, d in zip(head, forward, turnaround, strict=True)],
            forward + backward,
            [d + q + t for d, q, t in zip(turnaround, backward, tail, strict=True)] + tail,
            [INFINITE_TIME] * (2 * count),
            [not times.preemptive] * (2 * count),
            [0] * (2 * count),
            (),
        )

    def copy(self) -> TaskWindows:
        """Copy everything but the lengths, which never change."""
        head, tail, latest_end, uninterruptible, charged = (
            self.head[:],
            self.tail[:],
            self.latest_end[:],
            self.uninterruptible[:],
            self.charged[:],
        )
        return TaskWindows(head, self.length, tail, latest_end, uninterruptible, charged, self.orders)

    def propagate(self, turnaround: Sequence[int], horizon: int) -> bool:
        """Propagate orders and delays until nothing changes; return False if a task no longer fits its window."""
        count = len(turnaround)
        ties = [(k, k + count, gap) for k, gap in enumerate(turnaround)] + [(a, b, 0) for a, b in self.orders]
        head, length, tail, latest_end = self.head, self.length, self.tail, self.latest_end
        for _ in range(len(ties) + 1):
            before = sum(head) - sum(latest_end) + sum(tail)
            for a, b, gap in ties:
                head[b] = max(head[b], head[a] + length[a] + gap)
                tail[a] = max(tail[a], tail[b] + length[b] + gap)
                latest_end[a] = min(latest_end[a], latest_end[b] - length[b] - gap)
            if before == sum(head) - sum(latest_end) + sum(tail):
                break
        return all(h + p <= min(c, horizon - q) for h, p, c, q in zip(head, length, latest_end, tail, strict=True))


TaskPiece = tuple[int, int, int]
"""Task, start, end; a plain tuple, because the search makes millions of them."""


class MachineSchedule(NamedTuple):
    """Best known schedule and bound of a set of clients on a helper."""

    value: int
    """Makespan of `rows`; INFINITE_TIME if none below the limit was found."""
    rows: list[TaskRow]
    bound: int
    """No schedule has a shorter makespan."""

    @property
    def proven(self) -> bool:
        """True if the schedule is optimal."""
        return self.bound >= self.value


class SingleMachine:
    """One helper, for many sets of clients."""

    def __init__(self, instance: Instance, helper: int, *, preemptive: bool | None = None) -> None:
        """preemptive: None takes the instance's."""
        times = MachineTimes.from_instance(instance, helper)
        self.times = times if preemptive is None else times._replace(preemptive=preemptive)
        self.effort = 0
        """Tasks sequenced so far, a measure of work."""

    def bound(self, clients: Sequence[int]) -> int:
        """Return Jackson's bound: the least makespan with preemption and without delays between a client's tasks."""
        root = TaskWindows.root(self.times, clients)
        self.effort += len(clients)
        return jackson_bound(root.head, root.length, root.tail)

    def solve(
        self, clients: Sequence[int], *, nodes: int, below: int = INFINITE_TIME, enough: int = 0
    ) -> MachineSchedule:
        """Return the best schedule that `nodes` nodes find with a makespan below `below`; stop at one of at most
        `enough`.

        With enough nodes it is optimal, or `bound` proves that there is none below `below`.
        """
        if not clients:
            return MachineSchedule(0, [], 0)
        search = _Search(self.times, clients, below)
        found = search.run(nodes, enough)
        self.effort += len(clients) * (4 + 3 * search.node_count)
        if nodes and not found.proven and self.times.preemptive and self.times.switch_cost:
            return self._with_free_switches(clients, nodes, below, found)
        return found

    def _with_free_switches(
        self, clients: Sequence[int], nodes: int, below: int, known: MachineSchedule
    ) -> MachineSchedule:
        """Solve again as if switches were free, which bounds every makespan, and return the better of both schedules.

        The free schedule is a plan once it pays for its switches; it is found and proven quickly at any time unit.
        """
        if known.value < INFINITE_TIME:
            below = min(below, known.value)
        search = _Search(self.times._replace(switch_cost=0), clients, below)
        free = search.run(nodes, 0)
        self.effort += len(clients) * (4 + 3 * search.node_count)
        bound = max(known.bound, free.bound)
        if free.rows:
            pieces = Counter(row.client for row in free.rows)
            ends = {row.client: row.end for row in free.rows if row.direction == BACKWARD}  # rows are ordered by start
            cost, tail = self.times.switch_cost, self.times.tail
            value = max(end + tail[j] + (pieces[j] - 2) * cost for j, end in ends.items())
            if value < below:
                return MachineSchedule(value, free.rows, bound)
        return known._replace(bound=bound)


class _Search:
    def __init__(self, times: MachineTimes, clients: Sequence[int], below: int) -> None:
        self.times, self.clients, self.count = times, list(clients), len(clients)
        self.turnaround = [times.turnaround[j] for j in clients]
        self.best, self.spans = below, list[TaskPiece]()
        self.node_count = 0
        """Nodes."""
        self.undecided_bound = INFINITE_TIME
        """Lower bound of the leaves that were neither a plan nor ruled out."""

    def run(self, nodes: int, enough: int) -> MachineSchedule:
        root = TaskWindows.root(self.times, self.clients)
        least = jackson_bound(root.head, root.length, root.tail)
        self._start(root)
        stack = [root]
        while stack and self.best > max(least, enough) and nodes > 0:
            nodes -= 1
            self.node_count += 1
            self._expand(stack.pop(), stack)
        value = self.best if self.spans else INFINITE_TIME
        if self.best <= least or not stack:
            least = max(least, min(self.best, self.undecided_bound))
        return MachineSchedule(value, self._rows(), least)

    def _start(self, root: TaskWindows) -> None:
        """Dispatch plans: longest tail first, with and without preemption, and first come, first served."""
        longest_tail, whole = [-x for x in root.tail], [True] * len(root.tail)
        self._dispatch(root, longest_tail, whole)
        self._dispatch(root, None, whole)
        if self.times.preemptive:
            self._dispatch(root, longest_tail, root.uninterruptible)

    def _expand(self, node: TaskWindows, stack: list[TaskWindows]) -> None:
        """Rule the node out, find a plan, or push its children, the more promising one last."""
        horizon = self.best - 1
        due = [min(latest_end, horizon - tail) for latest_end, tail in zip(node.latest_end, node.tail, strict=True)]
        relaxed = earliest_due_date(node.head, node.length, due)
        if relaxed is None:
            return
        self._dispatch(node, due, node.uninterruptible)
        if self.best <= horizon:
            # a better plan was found: expand the node again under the shorter horizon
            stack.append(node)
            return
        children = self._branch(node, relaxed)
        if children is None:
            self.undecided_bound = min(self.undecided_bound, jackson_bound(node.head, node.length, node.tail))
            return
        stack += [child for child in children if child.propagate(self.turnaround, self.best - 1)]

    def _branch(self, node: TaskWindows, relaxed: RelaxedSchedule) -> list[TaskWindows] | None:
        """Return two nodes that cover every plan of this one, the second to be explored first, or None."""
        late, worst = 0, -1
        for k in range(self.count):
            gap = relaxed.end[k] + self.turnaround[k] - relaxed.start[k + self.count]
            if gap > late:
                late, worst = gap, k
        if worst >= 0:
            # branching at the backward's start would advance by single units
            return self._branch_on_delay(node, worst, relaxed.end[worst] - 1)
        for k, other in relaxed.interrupted:
            if node.uninterruptible[k]:
                if node.uninterruptible[other]:
                    return [self._ordered(node, k, other), self._ordered(node, other, k)]
                return self._branch_on_interruption(node, other)
        if self.times.switch_cost:
            for k, _ in relaxed.interrupted:
                if not node.charged[k]:
                    return self._branch_on_interruption(node, k)
        return None

    def _branch_on_delay(self, node: TaskWindows, k: int, end: int) -> list[TaskWindows]:
        """Branch: the forward ends by `end`, or later."""
        by, later = node.copy(), node.copy()
        by.latest_end[k] = min(by.latest_end[k], end)
        at = k + self.count
        later.head[at] = max(later.head[at], end + 1 + self.turnaround[k])
        return [later, by]

    def _ordered(self, node: TaskWindows, first: int, second: int) -> TaskWindows:
        return node.copy()._replace(orders=(*node.orders, (first, second)))

    def _branch_on_interruption(self, node: TaskWindows, k: int) -> list[TaskWindows] | None:
        """Branch: the task is not interrupted, or pays for one more switch."""
        if node.charged[k]:
            return None
        whole, pays = node.copy(), node.copy()
        whole.uninterruptible[k] = True
        pays.charged[k] = 1
        for task in (k % self.count, k % self.count + self.count):
            pays.tail[task] += self.times.switch_cost
        return [pays, whole]

    def _dispatch(self, node: TaskWindows, rank: Sequence[int] | None, uninterruptible: Sequence[bool]) -> None:
        """Dispatch the ready task of least rank (None: first come, first served); keep the plan if it is better."""
        spans, value = self._simulate(node, rank, uninterruptible)
        if value < self.best:
            self.best, self.spans = value, spans

    def _simulate(
        self, node: TaskWindows, rank: Sequence[int] | None, uninterruptible: Sequence[bool]
    ) -> tuple[list[TaskPiece], int]:
        count, times, turnaround = self.count, self.times, self.turnaround
        coming = [(node.head[k], k) for k in range(count)]
        heapq.heapify(coming)
        waiting: list[tuple[int, int, int]] = []
        left, pieces = node.length[:], [0] * count
        spans: list[TaskPiece] = []
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
            if coming and not uninterruptible[task]:
                end = min(end, coming[0][0])
            left[task] -= end - now
            if spans and spans[-1][0] == task and spans[-1][2] == now:
                spans[-1] = (task, spans[-1][1], end)
            else:
                spans.append((task, now, end))
                pieces[task % count] += 1
            if not left[task]:
                heapq.heappop(waiting)
                if task < count:
                    heapq.heappush(coming, (max(node.head[task + count], end + turnaround[task]), task + count))
                else:
                    k = task - count
                    value = max(value, end + times.tail[self.clients[k]] + (pieces[k] - 2) * times.switch_cost)
            now = end
        return spans, value

    def _rows(self) -> list[TaskRow]:
        count = self.count
        return merged(
            TaskRow(self.clients[k % count], BACKWARD if k >= count else FORWARD, start, end)
            for k, start, end in self.spans
        )
