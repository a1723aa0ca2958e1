"""search: plans judged by the exact simulation; ours.

It starts from every synchronous baseline and from Asteroid's dynamic program on several orders of the devices, with and
without the devices at their heads, on a chain cut into few pieces; then anneals the best of them by changes of cuts,
shares, groups, their order and, where `warmup` is `free`, K (see `anneal`). It respects memory, uneven devices, links
and latencies, groups any devices, and leaves out those that slow the round. It proves nothing: the bound does.
"""

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from typing import NamedTuple

import numpy as np

from fleetune.errors import Infeasible, Refused
from fleetune.solving.hpp.case import Case, Ints
from fleetune.solving.hpp.draft import Draft
from fleetune.solving.hpp.dynamic import Dynamic, pieces
from fleetune.solving.hpp.lane import Found, Heat, Lane
from fleetune.solving.hpp.methods import asteroid, dapple, dp, eddl, pipedream, pp, single
from fleetune.solving.hpp.moves import Rules
from fleetune.solving.hpp.sketch import NEVER, SHORT, score, sketch_of
from fleetune.solving.hpp.spread import even_drafts, random_draft

LANES = 2
"""Walks done beside each other. More would be quicker on more cores, and slower on those that most laptops lend."""
PIECES = 32
"""Runs of layers that the dynamic program cuts between, for starts."""
ROUNDS = (Heat(24, 0.025, 0.06, 0.002), Heat(6, 0.04, 0.02, 0.001), Heat(2, 0.08, 0.008, 0.0002))
"""Walks from many starts, half of them good and of any number of stages, half random; then longer ones on from the
best. Where links are slow, what is good for 3 stages leads nowhere near what is good for 4."""
AGAIN = Heat(LANES, 0.0, 0.05, 0.005)
"""While there is time left."""
WORK, LEAST_WORK, MOST_WORK = 1.35, 2_000_000, 140_000_000
"""Tasks and transfers simulated, some 1e7 a second: so much times the ninth power of the devices, within limits."""
WORTH = 1.1
"""Starts whose formula promises a round this many times the best known one are not looked for."""
MOST_DRAFTS = 24
"""Starts of each order."""
ANYHOW = 12
"""Walks of the first round that start from random plans."""
ABREAST = 4
"""Best plans of each number of stages that come before any fifth one, where walks start."""
BASELINES: tuple[Callable[[Case], Draft], ...] = tuple(
    method.plan for method in (single, dp, pp, eddl, dapple, pipedream)
)
MOST_STATES = 500_000_000
"""Layers times devices, squared: with more the published planner takes more than half a minute, and is asked only
where a time limit ends it."""


class Effort(NamedTuple):
    """How long and by which chances to search."""

    seed: int = 0
    time_limit_s: float | None = None
    """None: a fixed amount of work, so that the answer is the same everywhere."""
    every_device: bool = False
    now: Callable[[], float] = time.monotonic


class Search:
    """One search."""

    def __init__(self, case: Case, effort: Effort, bound_s: float = 0.0) -> None:
        """`bound_s`: no plan is faster; what reaches it ends the search."""
        self.case, self.effort, self.bound_s = case, effort, bound_s
        self.rules = _rules(case, effort.every_device)
        self.lanes = [Lane(case, self.rules, effort.seed * LANES + k) for k in range(LANES)]
        self.ends_s = None if effort.time_limit_s is None else effort.now() + effort.time_limit_s
        self.found: dict[Draft, int] = {}
        self.given_up = False

    def best(self) -> Found:
        """The best plan found; one that lacks memory only where no other was found."""
        for draft in self._starts():
            self._add(draft)
            if self._late() and min(self.found.values(), default=NEVER) < SHORT:
                break
        work = min(max(LEAST_WORK, int(WORK * self.case.devices**9)), MOST_WORK)
        with ThreadPoolExecutor(LANES) as threads:
            try:
                self._walks(threads, work)
            except BaseException:
                self.given_up = True
                raise
        return self._leaders()[0]

    def _walks(self, threads: Executor, work: int) -> None:
        first, *others = ROUNDS
        starts = [*self._abreast()[: first.walks - ANYHOW], *self._anyhow()]
        self._walk(threads, starts, int(work * first.share), first)
        for heat in others:
            self._walk(threads, self._leaders()[: heat.walks], int(work * heat.share), heat)
        while self.ends_s is not None and not self._over():
            for heat in (AGAIN, ROUNDS[-1]):
                self._walk(threads, self._leaders()[: heat.walks], work // 16, heat)

    def _walk(self, threads: Executor, leaders: list[Found], work: int, heat: Heat) -> None:
        """Anneal from all of them, dealt to the lanes in turn; what each ends at is kept."""

        def along(k: int) -> list[Found]:
            return [self.lanes[k].walk(found, work, heat, self._over) for found in leaders[k :: len(self.lanes)]]

        for walked in list(threads.map(along, range(len(self.lanes)))):
            self.found.update((draft, value) for value, draft in walked)

    def _leaders(self) -> list[Found]:
        """The plans found, best first; of those with the same groups only the best."""
        leaders: dict[tuple[frozenset[int], ...], Found] = {}
        for value, draft in sorted((value, draft) for draft, value in self.found.items()):
            leaders.setdefault(tuple(frozenset(stage.devices) for stage in draft.stages), Found(value, draft))
        return list(leaders.values())

    def _abreast(self) -> list[Found]:
        """The same, a few of each number of stages before the next few of any."""
        before: Counter[int] = Counter()
        ranked = []
        for found in self._leaders():
            stages = len(found.draft.stages)
            ranked.append((before[stages] // ABREAST, found))
            before[stages] += 1
        return [found for _, found in sorted(ranked, key=lambda pair: pair[0])]

    def _anyhow(self) -> list[Found]:
        """Random plans."""
        random = np.random.default_rng(self.effort.seed % 2**63)
        drafts = (random_draft(self.case, random, everybody=self.effort.every_device) for _ in range(ANYHOW))
        return [Found(self._score(draft), draft) for draft in drafts if self._keeps_rules(draft)]

    def _published(self) -> Draft | None:
        """Asteroid's own plan, on all layers; None where there is none, or not in time."""
        if self.ends_s is None:
            if (self.case.layers * self.case.devices) ** 2 > MOST_STATES:
                return None
            left_s = None
        else:
            left_s = max(0.0, self.ends_s - self.effort.now())
        stopped = np.zeros(1, np.int64)
        timer = threading.Timer(left_s or 0.0, stopped.fill, (1,))
        timer.daemon = True
        if left_s is not None:
            timer.start()
        try:
            return asteroid.plan(self.case, stopped)
        except (Infeasible, Refused):  # no plan, or no room for its tables
            return None
        finally:
            timer.cancel()

    def _score(self, draft: Draft) -> int:
        return int(score(self.case.numbers, sketch_of(self.case, draft), self.lanes[0].bench, NEVER))

    def _late(self) -> bool:
        return self.given_up or (self.ends_s is not None and self.effort.now() >= self.ends_s)

    def _over(self, least: int = NEVER) -> bool:
        """Whether time is up, or what is found, or a plan of score `least`, is proven to be the best."""
        return self._late() or min(least, *self.found.values()) <= self.bound_s * 1e9 * (1 + 1e-9)

    def _add(self, draft: Draft) -> None:
        if draft in self.found or not self._keeps_rules(draft):
            return
        self.found[draft] = self._score(draft)

    def _keeps_rules(self, draft: Draft) -> bool:
        everybody = sum(len(stage.devices) for stage in draft.stages) == self.case.devices
        stages = int(self.rules.flags[1])
        return (everybody or not self.effort.every_device) and stages in (0, len(draft.stages))

    def _starts(self) -> Iterator[Draft]:
        """Plain arrangements, the baselines, then the dynamic program on several orders."""
        yield from even_drafts(self.case)
        for method in BASELINES:
            try:
                yield method(self.case)
            except Infeasible:
                continue
        published = self._published()
        if published is not None:
            yield published
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
