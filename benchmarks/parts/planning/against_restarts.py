"""`search` beside random-restart local search, on problems too large for trying all plans."""

import os
import time
from concurrent.futures import ProcessPoolExecutor

import numpy as np

from benchmarks.parts.planning.problems import Shape, random_problem
from benchmarks.parts.planning.tally import Tally
from benchmarks.report import Figure
from fleetune.solving.hpp.annealing import Cooling, ScoredDraft, anneal
from fleetune.solving.hpp.candidate import WORST_SCORE, candidate_of, score
from fleetune.solving.hpp.initial_drafts import random_draft
from fleetune.solving.hpp.instance import Instance
from fleetune.solving.hpp.methods.search import Search, SearchOptions
from fleetune.solving.hpp.solve import solve

LINKS = (0.03, 0.1, 0.3, 1.0)
PATIENCE = 60_000
"""Tasks and transfers simulated without a better plan before the next restart."""


def shape_of(seed: int) -> Shape:
    """30 layers on 8 devices, links from slow to fast, memory ample and tight."""
    return Shape(30, 8, 8, 8, link=LINKS[seed % len(LINKS)], memory=(1.0, 0.5)[seed // len(LINKS) % 2])


def against_restarts(tally: Tally, *, problems: int, seconds: float) -> list[Figure]:
    """How much better local search's best plan is, at worst and how often by more than 0.5 %."""
    seeds = range(problems)
    plans = [solve(random_problem(seed, shape_of(seed))) for seed in seeds]
    for seed, plan in zip(seeds, plans, strict=True):
        tally.check(random_problem(seed, shape_of(seed)), plan)
    with ProcessPoolExecutor(max_workers=len(os.sched_getaffinity(0))) as pool:
        others = list(pool.map(restarts, seeds, [seconds] * problems))
    excess = [plan.objective / round_s - 1 for plan, (round_s, _) in zip(plans, others, strict=True)]
    times = [plan.solve_s for plan in plans]
    starts = sorted(count for _, count in others)
    return [
        Figure(name="restarts_worst_excess", value=max(excess), unit="", target=0.005, better="lower",
               spread=(min(excess), max(excess)),
               about=f"search over {seconds:.0f} s of random-restart local search, worst of {problems} problems"),
        Figure(name="restarts_better_by_half_a_percent", value=sum(e > 0.005 for e in excess), unit="problems",
               target=0, better="lower", about=f"of 30 layers x 8 devices; {starts[0]} to {starts[-1]} restarts each"),
        Figure(name="search_30x8_s", value=max(times), unit="s", better="lower", spread=(min(times), max(times)),
               about="what search took"),
    ]  # fmt: skip


def restarts(seed: int, seconds: float) -> tuple[float, int]:
    """Descents from random plans to where no change helps, until time is up: the best round in s, and how many."""
    instance = Instance(random_problem(seed, shape_of(seed)))
    worker, random = Search(instance, SearchOptions(seed=seed)).workers[0], np.random.default_rng(seed)
    best, count, ends = WORST_SCORE, 0, time.monotonic() + seconds
    while time.monotonic() < ends:
        draft = random_draft(instance, random)
        walk = worker.start(
            ScoredDraft(int(score(worker.arrays, candidate_of(instance, draft), worker.evaluator, WORST_SCORE)), draft)
        )
        before = WORST_SCORE
        while walk.scores[1] < before and time.monotonic() < ends:
            before = int(walk.scores[1])
            anneal(worker.arrays, worker.evaluator, worker.rules, walk, worker.rng, Cooling(PATIENCE, 1e-9, 1e-9))
        best, count = min(best, int(walk.scores[1])), count + 1
    return best / 1e9, count
