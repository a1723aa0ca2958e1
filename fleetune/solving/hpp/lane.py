"""Where walks are done one after the other, with memory of their own: lanes run beside each other on threads.

A lane's chance and what it remembers depend on nothing but the seed and the walks it was given, so a search of fixed
work answers the same on any machine, whatever the threads do.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from fleetune.solving.hpp.anneal import Walk, anneal
from fleetune.solving.hpp.case import Case
from fleetune.solving.hpp.draft import Draft
from fleetune.solving.hpp.memo import new_memo
from fleetune.solving.hpp.moves import Chance, Rules
from fleetune.solving.hpp.sketch import NEVER, Bench, draft_of, new_bench, new_sketch, sketch_of

PARTS = 8
"""A walk looks whether it is over so many times."""


class Found(NamedTuple):
    """A plan and its score."""

    score: int
    draft: Draft


class Heat(NamedTuple):
    """How a share of the work is spent."""

    walks: int
    share: float
    """Of all work, for each walk."""
    hot: float
    cold: float
    """Temperatures in shares of the round."""


class Lane:
    """One of several."""

    def __init__(self, case: Case, rules: Rules, seed: int) -> None:
        """Everything a walk needs is made here: compiled code makes no arrays."""
        self.case, self.rules = case, rules
        self.numbers = case.numbers._replace(
            room=np.zeros_like(case.numbers.room), hand=np.zeros_like(case.numbers.hand)
        )
        self.least = NEVER
        self.bench: Bench = new_bench(case)
        self.memo = new_memo()
        self.chance: Chance = np.array([(0x9E3779B97F4A7C15 ^ (seed % 2**63 + 1)) or 1], np.uint64)

    def start(self, found: Found) -> Walk:
        """A walk's start."""
        return Walk(
            here=sketch_of(self.case, found.draft),
            best=sketch_of(self.case, found.draft),
            trial=new_sketch(self.case),
            spare=new_sketch(self.case),
            scores=np.array([found.score, found.score]),
            pace_s=np.zeros((self.case.most_stages, 2)),
            memo=self.memo,
        )

    def walk(self, found: Found, work: int, heat: Heat, over: Callable[[int], bool]) -> Found:
        """Anneal from a plan, until done or `over`, which is asked with the least score this lane has come by; the best
        plan on the way."""
        walk = self.start(found)
        for step in range(PARTS):
            self.least = min(self.least, int(walk.scores[1]))
            if over(self.least):
                break
            hot = heat.hot * (heat.cold / heat.hot) ** (step / PARTS)
            cold = heat.hot * (heat.cold / heat.hot) ** ((step + 1) / PARTS)
            anneal(self.numbers, self.bench, self.rules, walk, self.chance, (max(1, work // PARTS), hot, cold))
        return Found(int(walk.scores[1]), draft_of(walk.best))
