"""All plans of an instance that is so small that they can be looked at one by one."""

from collections.abc import Iterator
from itertools import combinations, combinations_with_replacement, pairwise, permutations, product
from math import comb, perm

from fleetune.solving.hpp.draft import Draft, DraftStage
from fleetune.solving.hpp.instance import Instance
from fleetune.solving.hpp.problem import FREE


def count_plans(instance: Instance) -> int:
    """The number of plans: ordered groups, cuts, shares and, where it is free, K; whether they fit memories or not."""
    return sum(
        comb(instance.layers - 1, stages - 1)
        * _count_warmups(instance, stages)
        * sum(
            perm(instance.devices, used) * comb(stages * (instance.samples - 1), used - stages)
            for used in range(stages, instance.devices + 1)
        )
        for stages in _stage_counts(instance)
    )


def every_plan(instance: Instance) -> Iterator[Draft]:
    """Yield all plans that `count_plans` counts."""
    for stages in _stage_counts(instance):
        for used in range(stages, instance.devices + 1):
            for sizes in _compositions(used, stages):
                shares = [list(_compositions(instance.samples, size)) for size in sizes]
                yield from _dealt(instance, sizes, list(product(*shares)))


def _dealt(instance: Instance, sizes: tuple[int, ...], shares: list[tuple[tuple[int, ...], ...]]) -> Iterator[Draft]:
    """Plans of groups of these sizes, each with one of the shares of every group."""
    stages, places = len(sizes), list(pairwise([sum(sizes[:p]) for p in range(len(sizes) + 1)]))
    cuts = [(0, *inner, instance.layers) for inner in combinations(range(1, instance.layers), stages - 1)]
    for order in permutations(range(instance.devices), sum(sizes)):
        groups = [order[first:end] for first, end in places]
        for edges, samples in product(cuts, shares):
            made = tuple(map(DraftStage, edges[:-1], edges[1:], groups, samples))
            for kept in _warmups(instance, stages):
                yield Draft(made, kept)


def _stage_counts(instance: Instance) -> range:
    listed = instance.problem.warmup
    return range(1, instance.max_stages + 1) if isinstance(listed, str) else range(len(listed), len(listed) + 1)


def _count_warmups(instance: Instance, stages: int) -> int:
    return comb(instance.micro_batches + stages - 1, stages) if instance.problem.warmup == FREE else 1


def _warmups(instance: Instance, stages: int) -> Iterator[tuple[int, ...]]:
    """Warm-ups by the policy, or all that do not rise where they are free."""
    if instance.problem.warmup == FREE:
        yield from combinations_with_replacement(range(instance.micro_batches, 0, -1), stages)
    else:
        yield tuple(instance.warmups(stages))


def _compositions(total: int, parts: int) -> Iterator[tuple[int, ...]]:
    """Yield all ways of writing `total` as that many whole numbers of at least 1."""
    for inner in combinations(range(1, total), parts - 1):
        yield tuple(end - first for first, end in pairwise((0, *inner, total)))
