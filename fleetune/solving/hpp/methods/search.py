"""search: plans judged by the exact simulation; ours.

It starts from every synchronous baseline and from Asteroid's dynamic program on several orders of the devices, with and
without the devices at their heads, on a chain cut into few pieces; then anneals the best of them by changes of cuts,
shares, groups, their order and, where `warmup` is `free`, K (see `anneal`). It respects memory, uneven devices, links
and latencies, groups any devices, and leaves out those that slow the round. It proves nothing: the bound does.
"""

import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np

from fleetune.errors import Infeasible
from fleetune.solving.hpp.anneal import Walk, anneal
from fleetune.solving.hpp.case import Case, Ints
from fleetune.solving.hpp.draft import Draft, Stage
from fleetune.solving.hpp.dynamic import Dynamic, pieces
from fleetune.solving.hpp.methods import asteroid, dapple, dp, eddl, pipedream, pp, single
from fleetune.solving.hpp.moves import Rules
from fleetune.solving.hpp.sketch import NEVER, SHORT, Bench, draft_of, new_bench, new_sketch, score, sketch_of


class Heat(NamedTuple):
    """How a share of the work is spent."""

    walks: int
    share: float
    """Of all work, for each walk."""
    hot: float
    cold: float
    """Temperatures in shares of the round."""


PIECES = 32
"""Runs of layers that the dynamic program cuts between, for starts."""
ROUNDS = (Heat(8, 0.07, 0.08, 0.002), Heat(3, 0.08, 0.02, 0.001), Heat(1, 0.2, 0.008, 0.0002))
AGAIN = Heat(1, 0.0, 0.05, 0.005)
"""While there is time left."""
WORK, LEAST_WORK, MOST_WORK = 3.4, 1_000_000, 55_000_000
"""Tasks and transfers simulated, some 1e7 a second: so much times the eighth power of the devices, within limits."""
WORTH = 1.1
"""Starts whose formula promises a round this many times the best known one are not looked for."""
MOST_DRAFTS = 24
"""Starts of each order."""
PARTS = 8
"""A walk looks at the clock so many times."""
BASELINES: tuple[Callable[[Case], Draft], ...] = tuple(
    method.plan for method in (single, dp, pp, eddl, dapple, pipedream, asteroid)
)


class Effort(NamedTuple):
    """How long and by which chances to search."""

    seed: int = 0
    time_limit_s: float | None = None
    """None: a fixed amount of work, so that the answer is the same everywhere."""
    every_device: bool = False
    now: Callable[[], float] = time.monotonic


class Found(NamedTuple):
    """A plan and its score."""

    score: int
    draft: Draft


class Search:
    """One search."""

    def __init__(self, case: Case, effort: Effort, bound_s: float = 0.0) -> None:
        """`bound_s`: no plan is faster; what reaches it ends the search."""
        self.case, self.effort, self.bound_s = case, effort, bound_s
        self.bench: Bench = new_bench(case)
        self.rules = _rules(case, effort.every_device)
        self.chance = np.array([(0x9E3779B97F4A7C15 ^ (effort.seed % 2**63 + 1)) or 1], np.uint64)
        self.ends_s = None if effort.time_limit_s is None else effort.now() + effort.time_limit_s
        self.found: dict[Draft, int] = {}

    def best(self) -> Found:
        """The best plan found; one that lacks memory only where no other was found."""
        for draft in self._starts():
            self._add(draft)
            if self._late() and min(self.found.values(), default=NEVER) < SHORT:
                break
        work = min(max(LEAST_WORK, int(WORK * self.case.devices**8)), MOST_WORK)
        for heat in ROUNDS:
            for found in self._leaders(heat.walks):
                self._walk(found, int(work * heat.share), heat)
        while self.ends_s is not None and not self._over():
            for found in self._leaders(1):
                for heat in (AGAIN, ROUNDS[-1]):
                    found = self._walk(found, work // 16, heat)
        return self._leaders(1)[0]

    def _leaders(self, count: int) -> list[Found]:
        """The best plans that differ in who works with whom; of those that do not, only the best."""
        leaders: dict[tuple[frozenset[int], ...], Found] = {}
        for value, draft in sorted((value, draft) for draft, value in self.found.items()):
            if len(leaders) == count:
                break
            leaders.setdefault(tuple(frozenset(stage.devices) for stage in draft.stages), Found(value, draft))
        return list(leaders.values())

    def _late(self) -> bool:
        return self.ends_s is not None and self.effort.now() >= self.ends_s

    def _over(self) -> bool:
        """Whether time is up, or the best plan proven to be one."""
        return self._late() or self._leaders(1)[0].score <= self.bound_s * 1e9 * (1 + 1e-9)

    def _add(self, draft: Draft) -> None:
        if draft in self.found or not self._keeps_rules(draft):
            return
        self.found[draft] = int(score(self.case.numbers, sketch_of(self.case, draft), self.bench, NEVER))

    def _keeps_rules(self, draft: Draft) -> bool:
        everybody = sum(len(stage.devices) for stage in draft.stages) == self.case.devices
        stages = int(self.rules.flags[1])
        return (everybody or not self.effort.every_device) and stages in (0, len(draft.stages))

    def walk_from(self, draft: Draft, value: int) -> Walk:
        """The start of a walk at a plan of that score."""
        return Walk(
            here=sketch_of(self.case, draft),
            best=sketch_of(self.case, draft),
            trial=new_sketch(self.case),
            spare=new_sketch(self.case),
            scores=np.array([value, value]),
            pace_s=np.zeros(self.case.most_stages),
        )

    def _walk(self, found: Found, work: int, heat: Heat) -> Found:
        """Anneal from a plan; what it ends at is kept, and handed back."""
        if self._over():
            return found
        walk = self.walk_from(found.draft, found.score)
        for step in range(PARTS):
            hot = heat.hot * (heat.cold / heat.hot) ** (step / PARTS)
            cold = heat.hot * (heat.cold / heat.hot) ** ((step + 1) / PARTS)
            course = (max(1, work // PARTS), hot, cold)
            anneal(self.case.numbers, self.bench, self.rules, walk, self.chance, course)
            if self._late():
                break
        best = Found(int(walk.scores[1]), draft_of(walk.best))
        self.found[best.draft] = best.score
        return best

    def _starts(self) -> Iterator[Draft]:
        """Plain arrangements, the baselines, then the dynamic program on several orders."""
        yield from _spread(self.case)
        for method in BASELINES:
            try:
                yield method(self.case)
            except Infeasible:
                continue
        edges = pieces(self.case, PIECES)
        for order in _orders(self.case, self.effort.seed):
            if self._late():
                return
            known = min(self.found.values(), default=NEVER)
            bound_s = WORTH * known / 1e9 if known < SHORT else np.inf
            ranked = sorted(Dynamic(self.case, order, edges, bound_s).drafts(), key=lambda pair: pair[0])
            for _, draft in ranked[:MOST_DRAFTS]:
                yield draft


def _rules(case: Case, every_device: bool) -> Rules:
    policy = case.problem.warmup
    fixed = len(policy) if isinstance(policy, tuple) else 0
    warmups = np.ones((case.most_stages + 1, max(1, case.most_stages)), np.int64)
    for stages in range(1, case.most_stages + 1):
        if fixed in (0, stages):
            warmups[stages, :stages] = case.warmups(stages)
    return Rules(flags=np.array([int(every_device), fixed, int(policy == "free")]), warmups=warmups)


def _orders(case: Case, seed: int) -> list[Ints]:
    """By memory, by speed, both ways, and by chance."""
    memory = np.argsort(-case.memory_bytes, kind="stable")
    speed = np.argsort(case.least_s[:, -1], kind="stable")
    chance = np.random.default_rng(seed % 2**63)
    return [memory, speed, memory[::-1].copy(), speed[::-1].copy(), *(chance.permutation(case.devices) for _ in "ab")]


def _spread(case: Case) -> Iterator[Draft]:
    """Devices by speed dealt evenly to 1, 2, ... stages of equally many layers, samples evenly: plans of any shape."""
    speed = np.argsort(case.least_s[:, -1], kind="stable").tolist()
    for stages in range(1, case.most_stages + 1):
        policy = case.problem.warmup
        if isinstance(policy, tuple) and len(policy) != stages:
            continue
        used = speed[: stages * case.samples]
        edges = [case.layers * p // stages for p in range(stages + 1)]
        groups = [used[p::stages] for p in range(stages)]
        shares = [[case.samples // len(g) + (k < case.samples % len(g)) for k in range(len(g))] for g in groups]
        yield Draft(
            tuple(Stage(edges[p], edges[p + 1], tuple(groups[p]), tuple(shares[p])) for p in range(stages)),
            tuple(case.warmups(stages)),
        )
