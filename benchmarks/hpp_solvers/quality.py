"""Quality of `search`: against the optimum of tiny problems, random-restart local search, and all baselines."""

import os
import statistics
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from itertools import combinations, permutations, product

import numpy as np

from benchmarks.hpp_solvers.problems import Shape, random_problem
from benchmarks.report import Figure
from fleetune.errors import Infeasible
from fleetune.solving.hpp.annealing import Cooling, ScoredDraft, anneal
from fleetune.solving.hpp.candidate import OUT_OF_MEMORY, WORST_SCORE, candidate_of, new_evaluator, score
from fleetune.solving.hpp.draft import Draft, DraftStage
from fleetune.solving.hpp.instance import Instance
from fleetune.solving.hpp.methods import SUMMARIES
from fleetune.solving.hpp.methods.search import Search, SearchOptions, random_draft
from fleetune.solving.hpp.problem import Problem, Solution
from fleetune.solving.hpp.solve import solve

BASELINES = [name for name in SUMMARIES if name not in ("search", "hetpipe")]


class BaselineTally:
    """Counts problems, baselines with a shorter round than `search`, and plans of `search` over a memory budget."""

    def __init__(self) -> None:
        self.problems = 0
        self.compared = 0
        self.worse: list[str] = []
        self.over = 0
        self.gains: dict[str, list[float]] = {name: [] for name in BASELINES}

    def check(self, problem: Problem, found: Solution) -> None:
        """Compare a plan of `search` with every feasible synchronous baseline and with the memory budgets."""
        self.problems += 1
        budgets = {device.name: device.memory_bytes for device in problem.devices}
        self.over += any(peak > budgets[name] for name, peak in found.memory_bytes.items())
        for name in BASELINES:
            try:
                baseline = solve(problem, method=name)
            except Infeasible:
                continue
            if baseline.feasible:
                self.compared += 1
                self.gains[name].append(baseline.objective / found.objective)
                if baseline.objective < found.objective:
                    self.worse.append(name)

    def figures(self) -> list[Figure]:
        """Both counts, whose targets are 0, and the slowdown of each baseline."""
        about = f"of {self.compared} plans of baselines on {self.problems} problems, those faster than search's"
        found = [
            Figure(
                name="beaten_by_a_baseline", value=len(self.worse), unit="plans", target=0, better="lower", about=about
            ),
            Figure(name="over_a_budget", value=self.over, unit="plans", target=0, better="lower", about="of search's"),
        ]
        for name, gains in self.gains.items():
            if gains:
                gains.sort()
                found.append(
                    Figure(
                        name=f"{name}_over_search",
                        value=gains[len(gains) // 2],
                        unit="x",
                        better="higher",
                        spread=(gains[0], gains[-1]),
                        about=f"round of {name} over search's, median of {len(gains)} problems where it fits",
                    )
                )
        return found


LINKS = (0.03, 0.1, 0.3, 1.0, 10.0)
MEMORIES = (1.0, 0.5, 0.3)
SIZES = (Shape(5, 3, 4, 4), Shape(6, 3, 5, 6), Shape(7, 3, 4, 8), Shape(5, 4, 4, 4))


def compare_with_enumeration(tally: BaselineTally, *, problems: int) -> list[Figure]:
    """Mean and worst excess over the optimum; also counts wrong answers about feasibility."""
    excess, wrong, refused = [], 0, 0
    for seed in range(problems):
        size = SIZES[seed % len(SIZES)]
        shape = size._replace(link=LINKS[seed % len(LINKS)], memory=MEMORIES[seed // 5 % len(MEMORIES)])
        problem = random_problem(1000 + seed, shape)
        least = optimum_ns(Instance(problem))
        try:
            plan = solve(problem)
        except Infeasible:
            wrong += least is not None
            refused += 1
            continue
        if least is None:
            wrong += 1
            continue
        excess.append(plan.objective / (least / 1e9) - 1)
        tally.check(problem, plan)
    count = len(excess)
    return [
        Figure(name="tiny_mean_excess", value=statistics.mean(excess), unit="", target=0.005, better="lower",
               about=f"search over the best of all plans, mean of {count} problems"),
        Figure(name="tiny_worst_excess", value=max(excess), unit="", target=0.03, better="lower",
               about=f"and the worst of them; {refused} more fit no memory and were refused"),
        Figure(name="tiny_wrongly_judged", value=wrong, unit="problems", target=0, better="lower",
               about="found infeasible though a plan fits, or the other way round"),
    ]  # fmt: skip


def optimum_ns(instance: Instance) -> int | None:
    """Shortest round in ns over all ordered groupings, cuts and allocations; None if no plan fits."""
    evaluator, least = new_evaluator(instance), OUT_OF_MEMORY
    for draft in all_plans(instance):
        least = min(least, int(score(instance.arrays, candidate_of(instance, draft), evaluator, least)))
    return None if least >= OUT_OF_MEMORY or least == WORST_SCORE else least


def all_plans(instance: Instance) -> Iterator[Draft]:
    """Yields every plan, feasible or not, with samples in every order of a group's members."""
    for used in range(1, instance.devices + 1):
        for order in permutations(range(instance.devices), used):
            for stages in range(1, min(used, instance.layers) + 1):
                warmups = tuple(instance.warmups(stages))
                for sizes in _compositions(used, stages):
                    groups = [order[sum(sizes[:p]) : sum(sizes[: p + 1])] for p in range(stages)]
                    allocations = [_compositions(instance.samples, len(group)) for group in groups]
                    for cuts in combinations(range(1, instance.layers), stages - 1):
                        edges = (0, *cuts, instance.layers)
                        for shares in product(*allocations):
                            yield Draft(
                                tuple(DraftStage(edges[p], edges[p + 1], groups[p], shares[p]) for p in range(stages)),
                                warmups,
                            )


def _compositions(total: int, count: int) -> list[tuple[int, ...]]:
    """All ordered ways to write `total` as a sum of `count` integers of at least 1."""
    return [
        tuple(b - a for a, b in zip((0, *cuts), (*cuts, total), strict=True))
        for cuts in combinations(range(1, total), count - 1)
    ]


RESTART_LINKS = (0.03, 0.1, 0.3, 1.0)
STEPS_WITHOUT_GAIN = 60_000
"""Simulated tasks and transfers without improvement before the next restart."""


def shape_of(seed: int) -> Shape:
    """Shape with 30 layers on 8 devices; links vary from slow to fast, memory between ample and tight."""
    link = RESTART_LINKS[seed % len(RESTART_LINKS)]
    return Shape(30, 8, 8, 8, link=link, memory=(1.0, 0.5)[seed // len(RESTART_LINKS) % 2])


def compare_with_restarts(tally: BaselineTally, *, problems: int, seconds: float) -> list[Figure]:
    """Excess of `search` over the best plan of local search: the worst instance, and how often it is above 0.5 %."""
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
    """Local search from random plans until time is up; returns the best round in s and the number of restarts."""
    instance = Instance(random_problem(seed, shape_of(seed)))
    worker, random = Search(instance, SearchOptions(seed=seed)).workers[0], np.random.default_rng(seed)
    best, count, ends = WORST_SCORE, 0, time.monotonic() + seconds
    while time.monotonic() < ends:
        draft = random_draft(instance, random)
        first = score(worker.arrays, candidate_of(instance, draft), worker.evaluator, WORST_SCORE)
        walk = worker.start(ScoredDraft(int(first), draft))
        before = WORST_SCORE
        while walk.scores[1] < before and time.monotonic() < ends:
            before = int(walk.scores[1])
            anneal(
                worker.arrays, worker.evaluator, worker.rules, walk, worker.rng, Cooling(STEPS_WITHOUT_GAIN, 1e-9, 1e-9)
            )
        best, count = min(best, int(walk.scores[1])), count + 1
    return best / 1e9, count
