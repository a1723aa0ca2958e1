"""The tasks of one helper by when they may start and what must follow them: where a set of them needs too much.

The energetic bound: what a set of tasks needs of a helper between their earliest start and their latest end.

Within a horizon C, tasks of one helper that are all released at a or later and that all have at least b to follow run
inside [a, C - b): their lengths together are at most C - a - b (the argument of Jackson's one-machine bound, and of
energetic reasoning after Erschler, Lopez and Thuriot, 1991). Interrupted or not, so it holds for every plan of the
kind. With the assignment as variables it is linear, and it is where constraint solvers alone are weak: once helpers are
alike they prove next to nothing. A pair (helper, client) whose own path exceeds C is out. The (a, b) that matter are
few, so rows are added as an assignment breaks them; they are kept, since a row holds at every horizon.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fleetune.solving.deadline import Deadline
from fleetune.solving.split.instance import Bools, Instance, Ints

Floats = NDArray[np.float64]

MAX_LEVELS = 256
"""Starts a and remainders b looked at per helper; beyond that evenly picked ones."""
A_ROUND = 4
"""Rows added per helper and round."""


class Tasks(NamedTuple):
    """The two tasks of every client on one helper, forwards first: arrays [2 * clients]."""

    head: Ints
    """Earliest start."""
    length: Ints
    tail: Ints
    """Least time from its end to the client's completion, two switches included."""


def tasks_on(instance: Instance, helper: int) -> Tasks:
    """What any schedule of the helper must respect."""
    release, forward, between = instance.release[helper], instance.forward[helper], instance.between[helper]
    backward, after = instance.backward[helper], instance.tail[helper] + 2 * instance.switch_cost[helper]
    return Tasks(
        np.concatenate([release, release + forward + between]),
        np.concatenate([forward, backward]),
        np.concatenate([between + backward + after, after]),
    )


class TaskGrid(NamedTuple):
    """The tasks of one helper by which starts and remainders they pass."""

    starts: Ints
    """Candidates for a, ascending."""
    remainders: Ints
    """Candidates for b."""
    start: Ints
    """[task] Place of its head among the candidates: the last that is not above it."""
    remainder: Ints
    owner: Ints
    tasks: Tasks

    @classmethod
    def of(cls, tasks: Tasks, linked: Bools) -> TaskGrid:
        """The candidates, and where each task of a linked client is among them."""
        keep = np.concatenate([linked, linked])
        owner = np.tile(np.arange(len(linked)), 2)[keep]
        kept = Tasks(*(x[keep] for x in tasks))
        starts, remainders = _levels(kept.head), _levels(kept.tail)
        start = np.searchsorted(starts, kept.head, "right") - 1
        remainder = np.searchsorted(remainders, kept.tail, "right") - 1
        return cls(starts, remainders, start, remainder, owner, kept)

    def violated(self, share: Floats, horizon: float, tolerance: float) -> list[tuple[int, int]]:
        """The (a, b) whose tasks need most more than there is."""
        load = np.zeros((len(self.starts), len(self.remainders)))
        np.add.at(load, (self.start, self.remainder), self.tasks.length * share[self.owner])
        load = load[::-1, ::-1].cumsum(axis=0).cumsum(axis=1)[::-1, ::-1]
        edge = self.starts[:, None] + self.remainders[None, :]
        over = np.where(edge <= horizon, load + edge - horizon, -1.0)
        best = over.argmax(axis=1)
        worst = over[np.arange(len(best)), best]
        order = np.argsort(-worst, kind="stable")[:A_ROUND]
        return [(int(self.starts[k]), int(self.remainders[best[k]])) for k in order if worst[k] > tolerance]

    def weight(self, a: int, b: int, clients: int) -> Ints:
        """[client] Time units of its tasks that start at a or later with b or more to follow."""
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
"""Of the horizon: a linear program counts as infeasible from here on, far above the solver's tolerance."""
MAX_ROUNDS = 60


class EnergeticCut(NamedTuple):
    """Sum of weight * y over the clients of `helper` <= C - `edge`."""

    helper: int
    edge: int
    """a + b"""
    weight: Ints
    """[client]"""


def path_lengths(instance: Instance) -> Ints:
    """[helper, client] Time units from 0 to a client's completion if it had the helper to itself."""
    alone = instance.release + instance.forward + instance.between + instance.backward + instance.tail
    return np.asarray(alone + 2 * instance.switch_cost[:, None], np.int64)


class EnergeticBound:
    """Bounds on the horizon of assignments, fractional or not; remembers every row that it found to matter."""

    def __init__(self, instance: Instance) -> None:
        self.instance, self.deadline = instance, Deadline(None)
        self.path_lengths = np.where(instance.linked, path_lengths(instance), np.iinfo(np.int64).max)
        self.cuts: list[EnergeticCut] = []
        self.share: Floats | None = None
        """[helper, client] The fractional assignment at the shortest horizon that `least` found one for."""
        self.price: Floats | None = None
        """[helper, client] What a pair costs, by the dual prices of the last horizon found too short; inf: too long."""
        self._known: set[tuple[int, int, int]] = set()
        self._grids = [TaskGrid.of(tasks_on(instance, i), instance.linked[i]) for i in range(instance.helpers)]

    def path_bound(self) -> int:
        """Every client takes at least its shortest path."""
        return int(self.path_lengths.min(axis=0).max())

    def open_at(self, horizon: int) -> Bools:
        """[helper, client] Pairs whose own path fits."""
        return np.asarray(self.path_lengths <= horizon)

    def separate(self, share: Floats, horizon: float) -> int:
        """Add the rows that the assignment `share` [helper, client] breaks most; how many."""
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
        """How far beyond `horizon` the best fractional assignment ends (0: it fits), and it; inf: there is none."""
        share: Floats | None = None
        beyond = 0.0
        for _ in range(MAX_ROUNDS):
            if self.deadline.expired:
                return 0.0, None
            beyond, share = self._linear(horizon)
            if share is None or not self.separate(share, horizon + beyond):
                break
        return beyond, share

    def least(self, low: int, high: int, deadline: Deadline | None = None) -> int:
        """The least horizon within [low, high] at which a fractional assignment fits; no plan has a shorter one.

        Give a `low` below which there is no plan, and a plan's makespan as `high`. Where time is over, how far it got.
        """
        aim = low
        self.deadline = deadline or Deadline(None)
        while low < high and not self.deadline.expired:
            beyond, share = self.excess(aim)
            if beyond <= SLACK * max(1, aim):
                high, self.share = aim, share
            else:
                low = self._next(aim, beyond)
                if math.isfinite(beyond):
                    high = max(low, min(high, math.ceil(aim + beyond)))
            aim = (low + high) // 2
        return min(low, high)

    def _next(self, horizon: int, beyond: float) -> int:
        """Infeasible at `horizon` by `beyond`: no sooner than that, or than the next pair opens."""
        later = self.path_lengths[self.instance.linked & (self.path_lengths > horizon)]
        least = math.ceil(horizon + beyond * (1 - SLACK) - SLACK * horizon) if math.isfinite(beyond) else None
        options = [x for x in (least, int(later.min()) if later.size else None) if x is not None]
        return max(horizon + 1, min(options)) if options else horizon + 1

    def _linear(self, horizon: int) -> tuple[float, Floats | None]:
        from scipy.optimize import linprog
        from scipy.sparse import csr_matrix

        instance = self.instance
        opened = self.open_at(horizon)
        if not opened.any(axis=0).all():
            return math.inf, None
        helper, client = np.nonzero(opened)
        count = len(helper)
        matrix, limit = self._upper(horizon, opened)
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
                self.price = np.full(opened.shape, np.inf)
                self.price[helper, client] = solved.lower.marginals[:-1]
            return float(solved.x[-1]) * horizon, share
        return 0.0, None

    def _upper(self, horizon: int, opened: Bools):  # type: ignore[no-untyped-def]
        """Rows over the open pairs and the excess, in parts of the horizon, then memory in parts of each helper's."""
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
