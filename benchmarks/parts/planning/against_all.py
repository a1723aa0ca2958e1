"""`search` beside the best of all plans of tiny problems."""

import statistics
from collections.abc import Iterator
from itertools import combinations, permutations, product

from benchmarks.parts.planning.problems import Shape, random_problem
from benchmarks.parts.planning.tally import Tally
from benchmarks.report import Figure
from fleetune.errors import Infeasible
from fleetune.solving.hpp.case import Case
from fleetune.solving.hpp.draft import Draft, Stage
from fleetune.solving.hpp.sketch import NEVER, SHORT, new_bench, score, sketch_of
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
        least = best_ns(Case(problem))
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


def best_ns(case: Case) -> int | None:
    """The least round of all ordered groupings, cuts and dealings; None where none fits."""
    bench, least = new_bench(case), SHORT
    for draft in every_plan(case):
        least = min(least, int(score(case.numbers, sketch_of(case, draft), bench, least)))
    return None if least >= SHORT or least == NEVER else least


def every_plan(case: Case) -> Iterator[Draft]:
    """All of them, whether they fit or not; samples in every order of a group's members."""
    for used in range(1, case.devices + 1):
        for order in permutations(range(case.devices), used):
            for stages in range(1, min(used, case.layers) + 1):
                warmups = tuple(case.warmups(stages))
                for sizes in _parts(used, stages):
                    groups = [order[sum(sizes[:p]) : sum(sizes[: p + 1])] for p in range(stages)]
                    dealings = [_parts(case.samples, len(group)) for group in groups]
                    for cuts in combinations(range(1, case.layers), stages - 1):
                        edges = (0, *cuts, case.layers)
                        for shares in product(*dealings):
                            yield Draft(
                                tuple(Stage(edges[p], edges[p + 1], groups[p], shares[p]) for p in range(stages)),
                                warmups,
                            )


def _parts(total: int, count: int) -> list[tuple[int, ...]]:
    """`total` as that many whole numbers of at least 1."""
    return [
        tuple(b - a for a, b in zip((0, *cuts), (*cuts, total), strict=True))
        for cuts in combinations(range(1, total), count - 1)
    ]
