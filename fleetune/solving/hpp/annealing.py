"""Simulated annealing of candidate plans, compiled, and the workers that run it on threads.

A random change is accepted if the score stays below a threshold that is drawn beforehand, so that a lower bound
refuses most changes without a simulation. A worker's random numbers and score cache depend on nothing but the seed and
the walks it was given, so a search of fixed work finds the same plan on any machine and with any timing of threads.

Kirkpatrick, S., Gelatt, C., Vecchi, M.: Optimization by Simulated Annealing. Science 220, 1983.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fleetune.arrays import Floats
from fleetune.jit import compiled, inner
from fleetune.solving.hpp.candidate import (
    OUT_OF_MEMORY,
    WORST_SCORE,
    Candidate,
    Evaluator,
    candidate_of,
    copy,
    new_candidate,
    new_evaluator,
    score,
    to_draft,
)
from fleetune.solving.hpp.draft import Draft
from fleetune.solving.hpp.instance import Instance, InstanceArrays
from fleetune.solving.hpp.moves import (
    EVERY_DEVICE,
    STAGE_COUNT,
    PlanRules,
    RandomState,
    allocate_stage,
    random_below,
    regroup,
    set_warmups,
    tune,
)
from fleetune.solving.hpp.refine_cuts import balance_cuts, refine_cuts

COMBINED_MOVE_ODDS = 4
"""One change in this many is combined with another before the candidate is scored."""
BALANCE_WORK = 30
"""Work of balancing all cuts again, in simulated tasks per device."""
NOTHING, READY, REGROUPED = range(3)
"""Outcomes of a random change."""
STEPS = 8
"""Number of times that a walk checks whether to stop."""
CACHE_SLOTS = 1 << 18
KEY, SCORE, EXACT = range(3)
"""Columns of a ScoreCache: the key, a lower bound of the score, whether the bound is the score."""

ScoreCache = NDArray[np.int64]
"""Scores of candidates, since walks return to the same few again and again, [slot, column]. A direct-mapped hash table:
a new entry replaces the old one in its slot. Two candidates with the same 64-bit key, once in some 1e8 searches, are
taken for one; a search evaluates its answer again."""

_STAGE = 1 << 40
"""Marks the start of a stage; larger than any device index."""
_ODD = -0x61C8864680B583EB
"""2^64 over the golden ratio, signed: one bit of a key changes half of the next one."""
_BASIS = 0x4BF29CE484222325


class Cooling(NamedTuple):
    """Work of a walk and its geometric cooling."""

    work: int
    """In simulated tasks and transfers."""
    hot: float
    """First temperature, as a share of the round."""
    cold: float
    """Last temperature."""


class Walk(NamedTuple):
    """State of a walk: current, best and next candidate, and scratch buffers."""

    current: Candidate
    best: Candidate
    trial: Candidate
    scores: np.ndarray
    """[2]: of `current` and of `best`."""
    spare: Candidate
    """Scratch candidate of `refine_cuts`."""
    port_s_per_byte: Floats
    """Scratch buffer of `balance_cuts`, [stage, 2]."""
    cache: ScoreCache
    """Shared by the walks of a worker."""


@compiled
def anneal(
    arrays: InstanceArrays,
    evaluator: Evaluator,
    rules: PlanRules,
    walk: Walk,
    rng: RandomState,
    cooling: Cooling,
) -> None:
    """Continue the walk from `walk.current` for the work of `cooling`."""
    began, until = evaluator.work[0], evaluator.work[0] + cooling.work
    while evaluator.work[0] < until:
        evaluator.work[0] += 8
        copy(walk.current, walk.trial)
        change = _change(arrays, walk.trial, rules, rng)
        if change == NOTHING:
            continue
        done = (evaluator.work[0] - began) / cooling.work
        temperature = cooling.hot * (cooling.cold / cooling.hot) ** done
        luck = -np.log((random_below(rng, 1 << 30) + 1) / (1 << 30))
        base = OUT_OF_MEMORY if walk.scores[0] >= OUT_OF_MEMORY else 0
        within = base + int((walk.scores[0] - base) * (1.0 + temperature * luck)) + 1
        recut = random_below(rng, 4) > 0
        key = groups_key(walk.trial, recut) if change == REGROUPED else plan_key(walk.trial)
        found, exact = look_up(walk.cache, key)
        if found >= within:
            continue
        made = change == READY or _settle(arrays, evaluator, rules, walk, recut)
        if not made or not _is_allowed(arrays, rules, walk.trial):
            found = WORST_SCORE
        elif not exact:
            found = score(arrays, walk.trial, evaluator, within)
        exact = found < WORST_SCORE
        store(walk.cache, key, found if exact else within, exact)
        if found < within:
            copy(walk.trial, walk.current)
            walk.scores[0] = found
            if found < walk.scores[1]:
                copy(walk.trial, walk.best)
                walk.scores[1] = found


@inner
def _is_allowed(arrays: InstanceArrays, rules: PlanRules, candidate: Candidate) -> bool:
    """Tell whether the candidate keeps the rules and every group is small enough for a micro-batch."""
    stages = candidate.size[0]
    if stages < 1 or (rules.flags[STAGE_COUNT] > 0 and stages != rules.flags[STAGE_COUNT]):
        return False
    if rules.flags[EVERY_DEVICE] and candidate.first[stages] < arrays.memory_bytes.size:
        return False
    for p in range(stages):
        count = candidate.first[p + 1] - candidate.first[p]
        if count < 1 or count > arrays.seconds.shape[1] - 1 or candidate.edge[p + 1] <= candidate.edge[p]:
            return False
    return bool(candidate.edge[stages] == arrays.seconds.shape[2] - 1)


@inner
def _change(arrays: InstanceArrays, candidate: Candidate, rules: PlanRules, rng: RandomState) -> int:
    """Change the candidate at random; sometimes several changes at once, since plans between two good ones may be bad.

    Returns NOTHING where no change was possible, READY, or REGROUPED where cuts and shares must be made again.
    """
    outcome = int(NOTHING)
    while True:
        draw = random_below(rng, 100)
        if draw >= 62:
            if not regroup(candidate, rng, draw):
                return NOTHING
            outcome = REGROUPED
        elif outcome == REGROUPED:
            return outcome
        elif not tune(arrays, candidate, rules, rng, draw):
            return NOTHING
        else:
            outcome = READY
        if random_below(rng, COMBINED_MOVE_ODDS) > 0 or candidate.size[0] == 0:
            return outcome


@inner
def _settle(arrays: InstanceArrays, evaluator: Evaluator, rules: PlanRules, walk: Walk, recut: bool) -> bool:
    """Complete `walk.trial` after a change of groups: set cuts (where `recut`, or where a stage has no layer), K and
    shares, then refine the cuts. False where that is not possible."""
    batch, candidate = arrays.seconds.shape[1] - 1, walk.trial
    if candidate.size[0] < 1 or candidate.size[0] > candidate.warmup.size:
        return False
    for p in range(candidate.size[0]):
        if candidate.first[p + 1] - candidate.first[p] > batch:
            return False
        recut |= candidate.edge[p + 1] <= candidate.edge[p]
    evaluator.work[0] += BALANCE_WORK * candidate.first[candidate.size[0]] if recut else 0
    if recut and not balance_cuts(arrays, candidate, rules, walk.port_s_per_byte):
        return False
    set_warmups(arrays, candidate, rules)
    for p in range(candidate.size[0]):
        allocate_stage(arrays, candidate, p)
    refine_cuts(arrays, candidate, evaluator, walk.spare)
    return True


def new_score_cache() -> ScoreCache:
    """An empty cache."""
    return np.zeros((CACHE_SLOTS, 3), np.int64)


@inner
def groups_key(candidate: Candidate, recut: bool) -> int:
    """Key of the groups and their order, and of the cuts unless these are chosen again (`recut`)."""
    key = int(_BASIS + candidate.size[0])
    for p in range(candidate.size[0]):
        key = _mixed(key, _STAGE if recut else _STAGE + candidate.edge[p + 1])
        for g in range(candidate.first[p], candidate.first[p + 1]):
            key = _mixed(key, candidate.device[g] + 1)
    return key


@inner
def plan_key(candidate: Candidate) -> int:
    """Key of the whole plan."""
    key = _BASIS - 1
    for p in range(candidate.size[0]):
        key = _mixed(_mixed(key, candidate.edge[p + 1]), candidate.warmup[p])
        for g in range(candidate.first[p], candidate.first[p + 1]):
            key = _mixed(key, (candidate.samples[g] << 20) + candidate.device[g] + 1)
    return key


@inner
def _mixed(key: int, value: int) -> int:
    """Extend a key by a value."""
    key = (key ^ value) * _ODD
    return key ^ (key >> 32)


@inner
def look_up(cache: ScoreCache, key: int) -> tuple[int, bool]:
    """Return a lower bound of the score (0 where nothing is known), and whether it is the score itself."""
    row = cache[(key ^ (key >> 17)) & (CACHE_SLOTS - 1)]
    if row[KEY] != key:
        return 0, False
    return row[SCORE], row[EXACT] > 0


@inner
def store(cache: ScoreCache, key: int, score: int, exact: bool) -> None:
    """Write an entry to its slot, replacing what was there."""
    row = cache[(key ^ (key >> 17)) & (CACHE_SLOTS - 1)]
    row[KEY], row[SCORE], row[EXACT] = key, score, exact


class ScoredDraft(NamedTuple):
    """A draft and its score."""

    score: int
    draft: Draft


class AnnealingPhase(NamedTuple):
    """A part of a search: number, length and temperatures of its walks."""

    walks: int
    share: float
    """Work of each walk, as a share of the search's."""
    hot: float
    cold: float
    """Temperatures, as shares of the round."""


class AnnealingWorker:
    """A sequence of walks with working memory of its own, which runs on one thread."""

    def __init__(self, instance: Instance, rules: PlanRules, seed: int) -> None:
        """Allocate all working memory; compiled code allocates none."""
        self.instance, self.rules = instance, rules
        self.arrays = instance.arrays._replace(
            int_scratch=np.zeros_like(instance.arrays.int_scratch),
            float_scratch=np.zeros_like(instance.arrays.float_scratch),
        )
        self.least = WORST_SCORE
        self.evaluator: Evaluator = new_evaluator(instance)
        self.cache = new_score_cache()
        self.rng: RandomState = np.array([(0x9E3779B97F4A7C15 ^ (seed % 2**63 + 1)) or 1], np.uint64)

    def start(self, found: ScoredDraft) -> Walk:
        """State of a walk that starts from a draft."""
        return Walk(
            current=candidate_of(self.instance, found.draft),
            best=candidate_of(self.instance, found.draft),
            trial=new_candidate(self.instance),
            spare=new_candidate(self.instance),
            scores=np.array([found.score, found.score]),
            port_s_per_byte=np.zeros((self.instance.max_stages, 2)),
            cache=self.cache,
        )

    def walk(
        self, found: ScoredDraft, work: int, phase: AnnealingPhase, should_stop: Callable[[int], bool]
    ) -> ScoredDraft:
        """Anneal from a draft and return the best one found on the way.

        Ends early when `should_stop`, called with the least score that this worker has found, returns True.
        """
        walk = self.start(found)
        for step in range(STEPS):
            self.least = min(self.least, int(walk.scores[1]))
            if should_stop(self.least):
                break
            hot = phase.hot * (phase.cold / phase.hot) ** (step / STEPS)
            cold = phase.hot * (phase.cold / phase.hot) ** ((step + 1) / STEPS)
            anneal(self.arrays, self.evaluator, self.rules, walk, self.rng, Cooling(max(1, work // STEPS), hot, cold))
        return ScoredDraft(int(walk.scores[1]), to_draft(walk.best))
