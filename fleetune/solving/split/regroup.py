"""Some helpers' clients dealt out among them anew, exactly: what single moves and exchanges do not find.

Large neighbourhood search (P. Shaw, CP 1998): a helper that ends last and some others give up their clients, and the
Benders search of `master` looks for an assignment of these to those that ends sooner, or proves that there is none.
Rows and cuts that it learns hold for the whole problem, so that neither is lost. With four helpers a group is decided
in a fraction of a second; once no group of that size is left to try, groups are larger by one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import combinations
from random import Random

import numpy as np

from fleetune.solving.split.book import clients_of
from fleetune.solving.split.master import Master

WORK = {3: 0.1, 4: 0.15, 5: 0.6}
"""Of the solver for one group, in deterministic seconds, by its size."""
ROUNDS = 60
EFFORT_S = 3e-6
"""Of a unit of the book's effort."""


class Regroup:
    """From one assignment; `masks` is the best one found, `value` its makespan."""

    def __init__(self, master: Master, masks: Sequence[int], seed: str) -> None:
        self.master, self.book, self.random = master, master.book, Random(seed)
        self.masks = list(masks)
        self.values = self.book.values(self.masks)
        self._tried: set[tuple[tuple[int, int], ...]] = set()

    @property
    def value(self) -> int:
        """The makespan."""
        return max(self.values)

    def run(self, *, work: float, enough: int, left_s: Callable[[], float]) -> None:
        """Until the makespan is at most `enough`, all groups are tried, about so many seconds' work is done, or none is
        left."""
        ends = self._spent() + work
        while self.value > enough and self._spent() < ends and left_s() > 0:
            group = self._group()
            if group is None:
                return
            self._deal(group, left_s)

    def _spent(self) -> float:
        return self.master.spent + EFFORT_S * self.book.effort

    def _group(self) -> tuple[int, ...] | None:
        """Helpers not tried together with these clients, one that ends last among them; None: there are none."""
        late = [i for i, value in enumerate(self.values) if value == self.value]
        for size in WORK:
            groups = []
            for a in late:
                others = [i for i in range(len(self.masks)) if i != a]
                groups += [tuple(sorted((a, *some))) for some in combinations(others, size - 1)]
            self.random.shuffle(groups)
            for group in groups:
                if self._key(group) not in self._tried:
                    return group
        return None

    def _key(self, group: tuple[int, ...]) -> tuple[tuple[int, int], ...]:
        return tuple((i, self.masks[i]) for i in group)

    def _deal(self, group: tuple[int, ...], left_s: Callable[[], float]) -> None:
        self._tried.add(self._key(group))
        among = np.zeros(self.master.case.linked.shape, bool)
        clients = [j for i in group for j in clients_of(self.masks[i])]
        among[np.ix_(group, clients)] = True
        verdict = self.master.decide(
            self.value - 1, work=WORK[len(group)], rounds=ROUNDS, hint=self.masks, left_s=left_s, among=among
        )
        if verdict.masks is not None and verdict.kept:
            for i in group:
                self.masks[i] = verdict.masks[i]
            self.values = self.book.values(self.masks)
