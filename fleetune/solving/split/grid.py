"""The tasks of one helper by when they may start and what must follow them: where a set of them needs too much."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fleetune.solving.split.case import Bools, Case, Ints

Floats = NDArray[np.float64]

MOST_LEVELS = 256
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


def tasks_of(case: Case, helper: int) -> Tasks:
    """What any schedule of the helper must respect."""
    release, forward, between = case.release[helper], case.forward[helper], case.between[helper]
    backward, after = case.backward[helper], case.tail[helper] + 2 * case.switch_cost[helper]
    return Tasks(
        np.concatenate([release, release + forward + between]),
        np.concatenate([forward, backward]),
        np.concatenate([between + backward + after, after]),
    )


class Grid(NamedTuple):
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
    def of(cls, tasks: Tasks, linked: Bools) -> Grid:
        """The candidates, and where each task of a linked client is among them."""
        keep = np.concatenate([linked, linked])
        owner = np.tile(np.arange(len(linked)), 2)[keep]
        kept = Tasks(*(x[keep] for x in tasks))
        starts, remainders = _levels(kept.head), _levels(kept.tail)
        start = np.searchsorted(starts, kept.head, "right") - 1
        remainder = np.searchsorted(remainders, kept.tail, "right") - 1
        return cls(starts, remainders, start, remainder, owner, kept)

    def broken(self, share: Floats, horizon: float, tolerance: float) -> list[tuple[int, int]]:
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
    if len(distinct) <= MOST_LEVELS:
        return distinct
    return np.asarray(distinct[np.linspace(0, len(distinct) - 1, MOST_LEVELS).astype(int)])
