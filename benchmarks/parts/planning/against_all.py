"""`search` beside the best of all plans of tiny problems."""

import statistics
from collections.abc import Iterator
from itertools import combinations, permutations, product

from benchmarks.parts.planning.problems import Shape, random_problem
from benchmarks.parts.planning.tally import Tally
from benchmarks.report import Figure
from fleetune.errors import Infeasible
from fleetune.solving.hpp.candidate import OUT_OF_MEMORY, WORST_SCORE, candidate_of, new_evaluator, score
from fleetune.solving.hpp.draft import Draft, DraftStage
from fleetune.solving.hpp.instance import Instance
from fleetune.solving.hpp.solve import solve

LINKS = (0.03, 0.1, 0.3, 1.0, 10.0)
MEMORIES = (1.0, 0.5, 0.3)
SIZES = (Shape(5, 3, 4, 4), Shape(6, 3, 5, 6), Shape(7, 3, 4, 8), Shape(5, 4, 4, 4))


def against_all_plans(tally: Tally, *, problems: int) -> list[Figure]:
    """Mean and worst excess over the optimum; problems that no plan fits must be refused."""
    excess, wrong, refused = [], 0, 0
    for seed in range(problems):
        size = SIZES[seed % len(SIZES)]
        shape = size._replace(link=LINKS[seed % len(LINKS)], memory=MEMORIES[seed // 5 % len(MEMORIES)])
        problem = random_problem(1000 + seed, shape)
        least = best_ns(Instance(problem))
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


def best_ns(instance: Instance) -> int | None:
    """The least round of all ordered groupings, cuts and dealings; None where none fits."""
    evaluator, least = new_evaluator(instance), OUT_OF_MEMORY
    for draft in every_plan(instance):
        least = min(least, int(score(instance.arrays, candidate_of(instance, draft), evaluator, least)))
    return None if least >= OUT_OF_MEMORY or least == WORST_SCORE else least


def every_plan(instance: Instance) -> Iterator[Draft]:
    """All of them, whether they fit or not; samples in every order of a group's members."""
    for used in range(1, instance.devices + 1):
        for order in permutations(range(instance.devices), used):
            for stages in range(1, min(used, instance.layers) + 1):
                warmups = tuple(instance.warmups(stages))
                for sizes in _parts(used, stages):
                    groups = [order[sum(sizes[:p]) : sum(sizes[: p + 1])] for p in range(stages)]
                    dealings = [_parts(instance.samples, len(group)) for group in groups]
                    for cuts in combinations(range(1, instance.layers), stages - 1):
                        edges = (0, *cuts, instance.layers)
                        for shares in product(*dealings):
                            yield Draft(
                                tuple(DraftStage(edges[p], edges[p + 1], groups[p], shares[p]) for p in range(stages)),
                                warmups,
                            )


def _parts(total: int, count: int) -> list[tuple[int, ...]]:
    """`total` as that many whole numbers of at least 1."""
    return [
        tuple(b - a for a, b in zip((0, *cuts), (*cuts, total), strict=True))
        for cuts in combinations(range(1, total), count - 1)
    ]
