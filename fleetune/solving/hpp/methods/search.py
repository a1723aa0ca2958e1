"""search: simulated annealing of plans by the exact simulation; ours.

It starts from every synchronous baseline and from Asteroid's dynamic program on several orders of the devices, with and
without the devices at their heads, on layers joined into few pieces. Then it anneals the best of these by changes of
cuts, shares, groups, their order and, where `warmup` is `free`, K (see `annealing`). It respects memory, uneven
devices, links and latencies, groups any devices, and leaves out devices that slow the round. It is a heuristic: only
the lower bound tells how far a plan may be from the best.
"""

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from itertools import islice
from typing import NamedTuple

import numpy as np

from fleetune.arrays import Ints
from fleetune.errors import Infeasible, Refused
from fleetune.solving.hpp.annealing import AnnealingPhase, AnnealingWorker, ScoredDraft
from fleetune.solving.hpp.candidate import OUT_OF_MEMORY, WORST_SCORE, candidate_of, score
from fleetune.solving.hpp.chain_cuts import coarse_edges
from fleetune.solving.hpp.draft import Draft, DraftStage
from fleetune.solving.hpp.enumeration import count_plans, every_plan
from fleetune.solving.hpp.instance import Instance
from fleetune.solving.hpp.methods import asteroid, dapple, pipedream
from fleetune.solving.hpp.methods.asteroid import PipelineDP
from fleetune.solving.hpp.methods.baselines import RUNS, dp, eddl, pp, single
from fleetune.solving.hpp.moves import STAGE_COUNT, PlanRules
from fleetune.solving.hpp.sample_allocation import even_shares

WORKERS = 2
"""Number of threads. A fixed number, so that a seed gives the same plan on any machine; most laptops have two cores."""
PIECES = 32
"""Runs of layers that the dynamic program cuts between when it makes starts."""
PHASES = (
    AnnealingPhase(24, 0.025, 0.06, 0.002),
    AnnealingPhase(6, 0.04, 0.02, 0.001),
    AnnealingPhase(2, 0.08, 0.008, 0.0002),
)
"""First walks from many starts, half of them good ones of every number of stages, half random; then longer walks from
the best. Where links are slow, good plans of 3 stages are far from good plans of 4."""
RESTART = AnnealingPhase(WORKERS, 0.0, 0.05, 0.005)
"""Repeated, with the last phase, while time is left."""
WORK, MIN_WORK, MAX_WORK = 1.35, 2_000_000, 140_000_000
"""Work of a search in simulated tasks and transfers (about 1e7 per second): WORK · devices^9, within limits."""
START_SLACK = 1.1
"""Starts whose eq. (4) exceeds the best known round by this factor are skipped."""
DRAFTS_PER_ORDER = 24
"""Number of starts per order of the devices."""
RANDOM_STARTS = 12
"""Walks of the first phase that start from random plans."""
STARTS_PER_STAGE_COUNT = 4
"""Number of best plans of each stage count that are the first starts."""
BASELINES: tuple[Callable[[Instance], Draft], ...] = (single, dp, pp, eddl, dapple.plan, pipedream.plan)
MOST_PLANS = 5_000
"""Where there are no more plans, all are looked at: annealing misses in about one of 500 small problems a plan that
memory sets apart from all others. They take a quarter of a second at most."""
SLOW: dict[Callable[[Instance], Draft], Callable[[Instance], float]] = {
    pp: lambda instance: 1e-7 * instance.devices * min(instance.layers, RUNS) ** 2,
    dapple.plan: lambda instance: 5e-9 * instance.devices**3 * min(instance.layers, dapple.RUNS) ** 2,
}
"""About the seconds of baselines that may take long and cannot be stopped: a search with a time limit leaves out those
that would not end in time. 3000 layers on 40 devices take dapple 12 s."""
FILLED_BYTES_PER_S = 5e8
"""Rate at which a machine fills new tables, at least."""
MAX_ASTEROID_STATES = 500_000_000
"""Limit of (layers · devices)². Above it the published planner takes more than half a minute, and is started only where
a time limit ends it."""


class SearchOptions(NamedTuple):
    """Seed, limits and rules of a search."""

    seed: int = 0
    time_limit_s: float | None = None
    """None: a fixed amount of work, so that the plan is the same on any machine."""
    every_device: bool = False
    """True: all devices must take part."""
    now: Callable[[], float] = time.monotonic


class Search:
    """A search of one instance."""

    def __init__(self, instance: Instance, options: SearchOptions, bound_s: float = 0.0) -> None:
        """`bound_s`: lower bound of the round; a plan that reaches it ends the search."""
        self.instance, self.options, self.bound_s = instance, options, bound_s
        self.rules = _rules(instance, options.every_device)
        self.workers = [AnnealingWorker(instance, self.rules, options.seed * WORKERS + k) for k in range(WORKERS)]
        self.ends_s = None if options.time_limit_s is None else options.now() + options.time_limit_s
        self.found: dict[Draft, int] = {}
        self.cancelled = False

    def best(self) -> ScoredDraft:
        """Search, and return the best plan found; it is short of memory only where every plan found is."""
        for draft in self.starts():
            self.add(draft)
            if self._time_is_up() and min(self.found.values(), default=WORST_SCORE) < OUT_OF_MEMORY:
                break
        work = min(max(MIN_WORK, int(WORK * self.instance.devices**9)), MAX_WORK)
        with ThreadPoolExecutor(WORKERS) as threads:
            try:
                self._run_phases(threads, work)
            except BaseException:
                self.cancelled = True
                raise
        if count_plans(self.instance) <= MOST_PLANS and not self._should_stop():
            self._look_at_all()
        return self._leaders()[0]

    def _run_phases(self, threads: Executor, work: int) -> None:
        first, *others = PHASES
        starts = [*self._leaders_by_stage_count()[: first.walks - RANDOM_STARTS], *self._random_starts()]
        self._run_phase(threads, starts, int(work * first.share), first)
        for phase in others:
            self._run_phase(threads, self._leaders()[: phase.walks], int(work * phase.share), phase)
        while self.ends_s is not None and not self._should_stop():
            for phase in (RESTART, PHASES[-1]):
                self._run_phase(threads, self._leaders()[: phase.walks], work // 16, phase)

    def _run_phase(self, threads: Executor, leaders: list[ScoredDraft], work: int, phase: AnnealingPhase) -> None:
        """Anneal from all leaders, assigned to the workers in turn, and keep the best plan of each walk."""

        def anneal_share(k: int) -> list[ScoredDraft]:
            return [
                self.workers[k].walk(found, work, phase, self._should_stop) for found in leaders[k :: len(self.workers)]
            ]

        for walked in list(threads.map(anneal_share, range(len(self.workers)))):
            self.found.update((draft, value) for value, draft in walked)

    def _look_at_all(self) -> None:
        """Add every plan that is better than all found, as long as there is time."""
        least = min(self.found.values())
        for draft in every_plan(self.instance):
            if self._time_is_up():
                return
            if self._keeps_rules(draft):
                value = self._score(draft, least)
                if value < least:
                    self.found[draft] = least = value

    def _leaders(self) -> list[ScoredDraft]:
        """The plans found, best first; of plans with the same groups only the best."""
        leaders: dict[tuple[frozenset[int], ...], ScoredDraft] = {}
        for value, draft in sorted((value, draft) for draft, value in self.found.items()):
            leaders.setdefault(tuple(frozenset(stage.devices) for stage in draft.stages), ScoredDraft(value, draft))
        return list(leaders.values())

    def _leaders_by_stage_count(self) -> list[ScoredDraft]:
        """The same plans, but a few of each number of stages before the next few of any."""
        before: Counter[int] = Counter()
        ranked = []
        for found in self._leaders():
            stages = len(found.draft.stages)
            ranked.append((before[stages] // STARTS_PER_STAGE_COUNT, found))
            before[stages] += 1
        return [found for _, found in sorted(ranked, key=lambda pair: pair[0])]

    def _random_starts(self) -> list[ScoredDraft]:
        """Random plans with their scores."""
        random = np.random.default_rng(self.options.seed % 2**63)
        drafts = (
            random_draft(self.instance, random, every_device=self.options.every_device) for _ in range(RANDOM_STARTS)
        )
        return [ScoredDraft(self._score(draft), draft) for draft in drafts if self._keeps_rules(draft)]

    def _asteroid_draft(self) -> Draft | None:
        """The published planner's plan on all layers; None where there is none, or none in time."""
        if self.ends_s is None:
            if (self.instance.layers * self.instance.devices) ** 2 > MAX_ASTEROID_STATES:
                return None
            left_s = None
        else:
            tables_bytes = asteroid.needed_bytes(self.instance.layers, self.instance.devices)
            if not self._affords(tables_bytes / FILLED_BYTES_PER_S):
                return None
            left_s = max(0.0, self.ends_s - self.options.now())
        stopped = np.zeros(1, np.int64)
        timer = threading.Timer(left_s or 0.0, stopped.fill, (1,))
        timer.daemon = True
        if left_s is not None:
            timer.start()
        try:
            return asteroid.plan(self.instance, stopped)
        except (Infeasible, Refused):  # no plan, or no room for its tables
            return None
        finally:
            timer.cancel()

    def _score(self, draft: Draft, limit: int = WORST_SCORE) -> int:
        return int(score(self.instance.arrays, candidate_of(self.instance, draft), self.workers[0].evaluator, limit))

    def _affords(self, seconds: float) -> bool:
        """Tell whether so long a step would end in time, or no plan that fits is known yet."""
        known = min(self.found.values(), default=WORST_SCORE) < OUT_OF_MEMORY
        return not known or self.ends_s is None or self.options.now() + seconds < self.ends_s

    def _time_is_up(self) -> bool:
        return self.cancelled or (self.ends_s is not None and self.options.now() >= self.ends_s)

    def _should_stop(self, least: int = WORST_SCORE) -> bool:
        """Tell whether time is up, or the best plan found, or one of score `least`, is proven optimal."""
        return self._time_is_up() or min(least, *self.found.values()) <= self.bound_s * 1e9 * (1 + 1e-9)

    def add(self, draft: Draft) -> None:
        """Keep a plan with its score, unless it breaks a rule of the search."""
        if draft in self.found or not self._keeps_rules(draft):
            return
        self.found[draft] = self._score(draft)

    def _keeps_rules(self, draft: Draft) -> bool:
        all_used = sum(len(stage.devices) for stage in draft.stages) == self.instance.devices
        stages = int(self.rules.flags[STAGE_COUNT])
        return (all_used or not self.options.every_device) and stages in (0, len(draft.stages))

    def starts(self) -> Iterator[Draft]:
        """Yield even plans, the baselines' plans, then those of the dynamic program on several orders."""
        yield from even_drafts(self.instance, every_device=self.options.every_device)
        for method in BASELINES:
            takes_s = SLOW.get(method)
            if takes_s is not None and not self._affords(takes_s(self.instance)):
                continue
            try:
                yield method(self.instance)
            except Infeasible:
                continue
        from_asteroid = self._asteroid_draft()
        if from_asteroid is not None:
            yield from_asteroid
        edges = coarse_edges(self.instance, PIECES)
        for order in _orders(self.instance, self.options.seed):
            if self._time_is_up():
                return
            known = min(self.found.values(), default=WORST_SCORE)
            bound_s = START_SLACK * known / 1e9 if known < OUT_OF_MEMORY else np.inf
            ranked = sorted(PipelineDP(self.instance, order, edges, bound_s).drafts(), key=lambda pair: pair[0])
            for _, draft in ranked[:DRAFTS_PER_ORDER]:
                yield draft


def _rules(instance: Instance, every_device: bool) -> PlanRules:
    policy = instance.problem.warmup
    fixed = len(policy) if isinstance(policy, tuple) else 0
    warmups = np.ones((instance.max_stages + 1, max(1, instance.max_stages)), np.int64)
    for stages in range(1, instance.max_stages + 1):
        if fixed in (0, stages):
            warmups[stages, :stages] = instance.warmups(stages)
    return PlanRules(flags=np.array([int(every_device), fixed, int(policy == "free")]), warmups=warmups)


def _orders(instance: Instance, seed: int) -> list[Ints]:
    """Orders of the devices: by memory and by speed, both ways, and two random ones."""
    memory = np.argsort(-instance.memory_bytes, kind="stable")
    speed = np.argsort(instance.best_s[:, -1], kind="stable")
    rng = np.random.default_rng(seed % 2**63)
    return [memory, speed, memory[::-1].copy(), speed[::-1].copy(), *(rng.permutation(instance.devices) for _ in "ab")]


def even_drafts(instance: Instance, *, every_device: bool = False) -> Iterator[Draft]:
    """One draft per number of stages: equally many layers each, devices in turn by speed, even shares.

    Devices beyond those that have the samples that their layers need are left out, or, with `every_device`, beyond
    those that have one sample.
    """
    speed = np.argsort(instance.best_s[:, -1], kind="stable").tolist()
    for stages in range(1, instance.max_stages + 1):
        policy = instance.problem.warmup
        if isinstance(policy, tuple) and len(policy) != stages:
            continue
        used = speed[: stages * instance.samples]
        edges = [instance.layers * p // stages for p in range(stages + 1)]
        groups = [used[p::stages] for p in range(stages)]
        if not every_device:
            groups = [group[: _most_devices(instance, *edges[p : p + 2])] for p, group in enumerate(groups)]
        shares = [even_shares(instance.samples, len(group)) for group in groups]
        yield Draft(
            tuple(DraftStage(edges[p], edges[p + 1], tuple(groups[p]), shares[p]) for p in range(stages)),
            tuple(instance.warmups(stages)),
        )


def random_draft(instance: Instance, random: np.random.Generator, *, every_device: bool = False) -> Draft:
    """Random cuts and groups with even shares, in the listed or a random number of stages.

    With `every_device` all devices take part, as far as each can have one sample; else only those that have the samples
    that their layers need.
    """
    listed = instance.problem.warmup
    stages = len(listed) if isinstance(listed, tuple) else int(random.integers(1, instance.max_stages + 1))
    used = instance.devices if every_device else int(random.integers(stages, instance.devices + 1))
    sizes = [1] * stages
    for _ in range(min(used, stages * instance.samples) - stages):
        open_to = [p for p in range(stages) if sizes[p] < instance.samples]
        sizes[int(random.choice(open_to))] += 1
    devices = iter(random.permutation(instance.devices).tolist())
    groups = [tuple(islice(devices, size)) for size in sizes]
    inner_cuts = np.sort(random.choice(np.arange(1, instance.layers), stages - 1, replace=False))
    cuts = [0, *inner_cuts.tolist(), instance.layers]
    if not every_device:
        groups = [group[: _most_devices(instance, *cuts[p : p + 2])] for p, group in enumerate(groups)]
    shares = [even_shares(instance.samples, len(group)) for group in groups]
    parts = tuple(DraftStage(cuts[p], cuts[p + 1], groups[p], shares[p]) for p in range(stages))
    return Draft(parts, tuple(instance.warmups(stages)))


def _most_devices(instance: Instance, first: int, end: int) -> int:
    """The largest number of devices that can share the samples of layers [first, end)."""
    return instance.samples // instance.least_samples(first, end)
