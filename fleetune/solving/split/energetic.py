"""The energetic lower bound: the work that a set of tasks needs from a helper between earliest start and latest end.

Within a horizon C, tasks of one helper that are all released at a or later and are all followed by at least b run
inside [a, C - b): their total length is at most C - a - b (the argument of Jackson's one-machine bound, and of
energetic reasoning after Erschler, Lopez and Thuriot, 1991). It holds with and without preemption. With the assignment
as variables it is linear, and it helps where constraint solvers are weak: once helpers are alike they prove next to
nothing. A pair (helper, client) whose own path exceeds C is excluded. Few (a, b) matter, so cuts are added when an
assignment violates them; they are kept, because a cut holds at every horizon.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from fleetune.arrays import Bools, Floats, Ints
from fleetune.solving.limits import Deadline
from fleetune.solving.split.instance import Instance

MAX_LEVELS = 256
"""Starts a and tails b per helper; more are thinned evenly."""
CUTS_PER_HELPER = 4
"""Cuts added per helper and round."""


class Tasks(NamedTuple):
    """The two tasks of every client on one helper, forwards first: arrays [2 * clients]."""

    head: Ints
    """Earliest start."""
    length: Ints
    tail: Ints
    """Least time from the task's end to the client's completion, two switches included."""


def tasks_on(instance: Instance, helper: int) -> Tasks:
    """Return heads, lengths and tails of the tasks on a helper."""
    release, forward, turnaround = instance.release[helper], instance.forward[helper], instance.turnaround[helper]
    backward, after = instance.backward[helper], instance.tail[helper] + 2 * instance.switch_cost[helper]
    return Tasks(
        np.concatenate([release, release + forward + turnaround]),
        np.concatenate([forward, backward]),
        np.concatenate([turnaround + backward + after, after]),
    )


class TaskGrid(NamedTuple):
    """The tasks of one helper on a grid of start and tail candidates."""

    starts: Ints
    """Candidates for a, ascending."""
    remainders: Ints
    """Candidates for b, ascending."""
    start: Ints
    """[task], index of the last candidate start that is not above the task's head."""
    remainder: Ints
    owner: Ints
    tasks: Tasks

    @classmethod
    def from_tasks(cls, tasks: Tasks, linked: Bools) -> TaskGrid:
        """Return the candidates and the grid position of every task of a linked client."""
        keep = np.concatenate([linked, linked])
        owner = np.tile(np.arange(len(linked)), 2)[keep]
        kept = Tasks(*(x[keep] for x in tasks))
        starts, remainders = _levels(kept.head), _levels(kept.tail)
        start = np.searchsorted(starts, kept.head, "right") - 1
        remainder = np.searchsorted(remainders, kept.tail, "right") - 1
        return cls(starts, remainders, start, remainder, owner, kept)

    def violated(self, share: Floats, horizon: float, tolerance: float) -> list[tuple[int, int]]:
        """Return the most violated (a, b), at most CUTS_PER_HELPER of them."""
        load = np.zeros((len(self.starts), len(self.remainders)))
        np.add.at(load, (self.start, self.remainder), self.tasks.length * share[self.owner])
        load = load[::-1, ::-1].cumsum(axis=0).cumsum(axis=1)[::-1, ::-1]
        edge = self.starts[:, None] + self.remainders[None, :]
        over = np.where(edge <= horizon, load + edge - horizon, -1.0)
        best = over.argmax(axis=1)
        worst = over[np.arange(len(best)), best]
        order = np.argsort(-worst, kind="stable")[:CUTS_PER_HELPER]
        return [(int(self.starts[k]), int(self.remainders[best[k]])) for k in order if worst[k] > tolerance]

    def weight(self, a: int, b: int, clients: int) -> Ints:
        """Return [client] the length of its tasks with head >= a and tail >= b."""
        inside = (self.tasks.head >= a) & (self.tasks.tail >= b)
        found = np.zeros(clients, np.int64)
        np.add.at(found, self.owner[inside], self.tasks.length[inside])
        return found


def _levels(values: Ints) -> Ints:
    distinct = np.unique(values)
    if len(distinct) <= MAX_LEVELS:
        return distinct
    return np.asarray(distinct[np.linspace(0, len(distinct) - 1, MAX_LEVELS).astype(int)])


SLACK = 1e-6
"""Tolerance relative to the horizon, far above that of the linear solver."""
MAX_ROUNDS = 60


class EnergeticCut(NamedTuple):
    """Cut: sum of weight * y over the clients of `helper` <= C - `edge`."""

    helper: int
    edge: int
    """a + b"""
    weight: Ints
    """[client]"""


def path_lengths(instance: Instance) -> Ints:
    """Return [helper, client] the completion time of a client that has the helper to itself."""
    alone = instance.release + instance.forward + instance.turnaround + instance.backward + instance.tail
    return np.asarray(alone + 2 * instance.switch_cost[:, None], np.int64)


class EnergeticBound:
    """Bounds on the makespan of assignments, fractional or not; keeps every cut that it finds."""

    def __init__(self, instance: Instance) -> None:
        self.instance, self.deadline = instance, Deadline(None)
        self.path_lengths = np.where(instance.linked, path_lengths(instance), np.iinfo(np.int64).max)
        self.cuts: list[EnergeticCut] = []
        self.share: Floats | None = None
        """[helper, client], the fractional assignment at the shortest feasible horizon that `least_horizon` found."""
        self.reduced_cost: Floats | None = None
        """[helper, client], reduced cost of each pair at the last infeasible horizon; infinite for excluded pairs."""
        self._known: set[tuple[int, int, int]] = set()
        self._grids = [TaskGrid.from_tasks(tasks_on(instance, i), instance.linked[i]) for i in range(instance.helpers)]

    def path_bound(self) -> int:
        """Return the largest, over clients, of the shortest path."""
        return int(self.path_lengths.min(axis=0).max())

    def open_at(self, horizon: int) -> Bools:
        """Return [helper, client] True where the pair's own path meets the horizon."""
        return np.asarray(self.path_lengths <= horizon)

    def separate(self, share: Floats, horizon: float) -> int:
        """Add the cuts that the assignment `share` [helper, client] violates most; return their number."""
        added = 0
        for i, grid in enumerate(self._grids):
            if not share[i].any():
                continue
            for a, b in grid.violated(share[i], horizon, SLACK * max(1.0, horizon)):
                if (i, a, b) not in self._known:
                    self._known.add((i, a, b))
                    self.cuts.append(EnergeticCut(i, a + b, grid.weight(a, b, self.instance.clients)))
                    added += 1
        return added

    def excess(self, horizon: int) -> tuple[float, Floats | None]:
        """Return the best fractional assignment and its excess over `horizon`: (excess, assignment).

        An excess of 0 meets the horizon; it is infinite, and the assignment None, if there is none.
        """
        share: Floats | None = None
        beyond = 0.0
        for _ in range(MAX_ROUNDS):
            if self.deadline.expired:
                return 0.0, None
            beyond, share = self._solve_linear_program(horizon)
            if share is None or not self.separate(share, horizon + beyond):
                break
        return beyond, share

    def least_horizon(self, low: int, high: int, deadline: Deadline | None = None) -> int:
        """Return the least horizon within [low, high] that a fractional assignment meets: a lower bound on every plan.

        low: a known bound; high: a plan's makespan. If time runs out, returns the bound reached so far.
        """
        aim = low
        self.deadline = deadline or Deadline(None)
        while low < high and not self.deadline.expired:
            beyond, share = self.excess(aim)
            if beyond <= SLACK * max(1, aim):
                high, self.share = aim, share
            else:
                low = self._next_horizon(aim, beyond)
                if math.isfinite(beyond):
                    high = max(low, min(high, math.ceil(aim + beyond)))
            aim = (low + high) // 2
        return min(low, high)

    def _next_horizon(self, horizon: int, beyond: float) -> int:
        """Return the next horizon worth testing after `horizon` failed by `beyond`, or where the next pair opens."""
        later = self.path_lengths[self.instance.linked & (self.path_lengths > horizon)]
        least = math.ceil(horizon + beyond * (1 - SLACK) - SLACK * horizon) if math.isfinite(beyond) else None
        options = [x for x in (least, int(later.min()) if later.size else None) if x is not None]
        return max(horizon + 1, min(options)) if options else horizon + 1

    def _solve_linear_program(self, horizon: int) -> tuple[float, Floats | None]:
        from scipy.optimize import linprog
        from scipy.sparse import csr_matrix

        instance = self.instance
        opened = self.open_at(horizon)
        if not opened.any(axis=0).all():
            return math.inf, None
        helper, client = np.nonzero(opened)
        count = len(helper)
        matrix, limit = self._constraints(horizon, opened)
        equal = csr_matrix((np.ones(count), (client, np.arange(count))), (instance.clients, count + 1))
        cost = np.zeros(count + 1)
        cost[-1] = 1.0
        options = {"time_limit": max(0.01, self.deadline.left_s())} if self.deadline.limited else {}
        equals, sides = np.ones(instance.clients), (0, None)
        solved = linprog(cost, matrix, limit, equal, equals, bounds=sides, method="highs-ds", options=options)
        if solved.status == 2:
            return math.inf, None
        share = np.zeros(opened.shape)
        if solved.status == 0:
            share[helper, client] = solved.x[:-1]
            if solved.x[-1] > SLACK:
                self.reduced_cost = np.full(opened.shape, np.inf)
                self.reduced_cost[helper, client] = solved.lower.marginals[:-1]
            return float(solved.x[-1]) * horizon, share
        return 0.0, None

    def _constraints(self, horizon: int, opened: Bools):  # type: ignore[no-untyped-def]
        """Return matrix and limits: cuts over the open pairs and the relative excess, then relative memory."""
        from scipy.sparse import csr_matrix

        instance = self.instance
        place = np.cumsum(opened.ravel()).reshape(opened.shape) - 1
        used = [row for row in self.cuts if row.edge <= horizon]
        columns, values, starts, limit = [], [], [0], []
        for row in used:
            held = np.nonzero(opened[row.helper] & (row.weight > 0))[0]
            columns.append(np.append(place[row.helper, held], place.max() + 1))
            values.append(np.append(row.weight[held] / horizon, -1.0))
            limit.append((horizon - row.edge) / horizon)
            starts.append(starts[-1] + len(held) + 1)
        for i in range(instance.helpers):
            held = np.nonzero(opened[i])[0]
            room = max(1, int(instance.helper_memory[i]))
            columns.append(place[i, held])
            values.append(instance.client_memory[held] / room)
            limit.append(int(instance.helper_memory[i]) / room)
            starts.append(starts[-1] + len(held))
        shape = (len(limit), int(opened.sum()) + 1)
        return csr_matrix((np.concatenate(values), np.concatenate(columns), starts), shape), np.array(limit)
