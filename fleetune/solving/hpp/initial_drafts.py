"""Naive and random initial plans of a search."""

from collections.abc import Iterator
from itertools import islice

import numpy as np

from fleetune.solving.hpp.draft import Draft, DraftStage
from fleetune.solving.hpp.instance import Instance
from fleetune.solving.hpp.sample_allocation import even_shares


def even_drafts(instance: Instance) -> Iterator[Draft]:
    """One draft per number of stages: equally many layers each, devices dealt out in order of speed, even shares."""
    speed = np.argsort(instance.best_s[:, -1], kind="stable").tolist()
    for stages in range(1, instance.max_stages + 1):
        policy = instance.problem.warmup
        if isinstance(policy, tuple) and len(policy) != stages:
            continue
        used = speed[: stages * instance.samples]
        edges = [instance.layers * p // stages for p in range(stages + 1)]
        groups = [used[p::stages] for p in range(stages)]
        shares = [even_shares(instance.samples, len(group)) for group in groups]
        yield Draft(
            tuple(DraftStage(edges[p], edges[p + 1], tuple(groups[p]), shares[p]) for p in range(stages)),
            tuple(instance.warmups(stages)),
        )


def random_draft(instance: Instance, random: np.random.Generator, *, everybody: bool = False) -> Draft:
    """Random cuts and groups with even shares, in the listed or a random number of stages.

    With `everybody` all devices take part, as far as there are samples for them.
    """
    listed = instance.problem.warmup
    stages = len(listed) if isinstance(listed, tuple) else int(random.integers(1, instance.max_stages + 1))
    used = instance.devices if everybody else int(random.integers(stages, instance.devices + 1))
    sizes = [1] * stages
    for _ in range(min(used, stages * instance.samples) - stages):
        open_to = [p for p in range(stages) if sizes[p] < instance.samples]
        sizes[int(random.choice(open_to))] += 1
    devices = iter(random.permutation(instance.devices).tolist())
    groups = [tuple(islice(devices, size)) for size in sizes]
    inner_cuts = np.sort(random.choice(np.arange(1, instance.layers), stages - 1, replace=False))
    cuts = [0, *inner_cuts.tolist(), instance.layers]
    shares = [even_shares(instance.samples, len(group)) for group in groups]
    parts = tuple(DraftStage(cuts[p], cuts[p + 1], groups[p], shares[p]) for p in range(stages))
    return Draft(parts, tuple(instance.warmups(stages)))
