"""Enumerate every plan of a tiny problem, and find the best."""

from collections.abc import Iterator
from itertools import combinations, combinations_with_replacement, permutations

from fleetune.solving.hpp.candidate import WORST_SCORE, candidate_of, new_evaluator, score
from fleetune.solving.hpp.draft import Draft, DraftStage
from fleetune.solving.hpp.instance import Instance
from fleetune.solving.hpp.problem import Problem
from tests.support.solving.hpp.reference import POLICIES, peak_bytes, trainable


def compositions(total: int, parts: int) -> list[tuple[int, ...]]:
    """All ways of writing `total` as that many whole numbers of at least 1."""
    return [
        tuple(b - a for a, b in zip((0, *cuts), (*cuts, total), strict=True))
        for cuts in combinations(range(1, total), parts - 1)
    ]


def warmups(problem: Problem, stages: int) -> list[tuple[int, ...]]:
    """All warm-ups that the problem allows, capped at the number of micro-batches where it is free."""
    if problem.warmup == "free":
        return [k[::-1] for k in combinations_with_replacement(range(1, problem.micro_batches + 1), stages)]
    if isinstance(problem.warmup, str):
        return [tuple(POLICIES[problem.warmup](stages - p) for p in range(stages))]
    return [problem.warmup] if len(problem.warmup) == stages else []


def plans(problem: Problem, min_samples: tuple[int, ...] = (), received_per_byte: int = 0) -> Iterator[Draft]:
    """Yield every plan (groups, order, cuts, shares) that fits all memories by the contract's formula, and in which
    every device has at least as many samples as any of its layers needs (`min_samples`; empty: 1).

    received_per_byte: what each of several devices of a stage needs beside the formula, per trainable byte."""
    layers, devices = len(problem.layers), len(problem.devices)
    for stages in range(1, min(layers, devices) + 1):
        for kept in warmups(problem, stages):
            for inner in combinations(range(1, layers), stages - 1):
                edges = (0, *inner, layers)
                for used in range(stages, devices + 1):
                    for sizes in compositions(used, stages):
                        for draft in _dealt(problem, edges, sizes, kept, received_per_byte):
                            if enough_samples(draft, min_samples):
                                yield draft


def enough_samples(draft: Draft, min_samples: tuple[int, ...]) -> bool:
    """Whether every device has at least as many samples as any of its layers needs."""
    return not min_samples or all(
        min(stage.samples) >= max(min_samples[stage.first : stage.end]) for stage in draft.stages
    )


def _dealt(
    problem: Problem, edges: tuple[int, ...], sizes: tuple[int, ...], kept: tuple[int, ...], received_per_byte: int
) -> Iterator[Draft]:
    places = [(sum(sizes[:p]), sum(sizes[: p + 1])) for p in range(len(sizes))]
    for order in permutations(range(len(problem.devices)), sum(sizes)):
        choices: list[list[DraftStage]] = []
        for p, (a, b) in enumerate(places):
            span, group = (edges[p], edges[p + 1]), order[a:b]
            received = received_per_byte * trainable(problem, span) if len(group) > 1 else 0
            choices.append(
                [
                    DraftStage(*span, group, shares)
                    for shares in compositions(problem.micro_batch, len(group))
                    if all(
                        peak_bytes(problem, span, kept[p], y) + received <= problem.devices[d].memory_bytes
                        for d, y in zip(group, shares, strict=True)
                    )
                ]
            )
        partial: list[tuple[DraftStage, ...]] = [()]
        for stage_choices in choices:
            partial = [(*head, stage) for head in partial for stage in stage_choices]
        for stages in partial:
            yield Draft(stages, kept)


def best_ns(
    problem: Problem,
    min_samples: tuple[int, ...] = (),
    *,
    every_device: bool = False,
    received_per_byte: int = 0,
) -> int | None:
    """Shortest round of all plans in ns; None where none fits."""
    instance = Instance(problem, received_per_byte=received_per_byte)
    evaluator, least = new_evaluator(instance), WORST_SCORE
    for draft in plans(problem, min_samples, received_per_byte):
        if every_device and sum(len(stage.devices) for stage in draft.stages) < instance.devices:
            continue
        least = min(least, int(score(instance.arrays, candidate_of(instance, draft), evaluator, least)))
    return None if least == WORST_SCORE else least
