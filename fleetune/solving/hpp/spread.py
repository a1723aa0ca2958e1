"""Plans that look at nothing: where searches may start from anywhere."""

from collections.abc import Iterator
from itertools import islice

import numpy as np

from fleetune.solving.hpp.case import Case
from fleetune.solving.hpp.draft import Draft, Stage


def even_drafts(case: Case) -> Iterator[Draft]:
    """Devices by speed dealt evenly to 1, 2, ... stages of equally many layers, samples evenly: plans of any shape."""
    speed = np.argsort(case.least_s[:, -1], kind="stable").tolist()
    for stages in range(1, case.most_stages + 1):
        policy = case.problem.warmup
        if isinstance(policy, tuple) and len(policy) != stages:
            continue
        used = speed[: stages * case.samples]
        edges = [case.layers * p // stages for p in range(stages + 1)]
        groups = [used[p::stages] for p in range(stages)]
        shares = [[case.samples // len(g) + (k < case.samples % len(g)) for k in range(len(g))] for g in groups]
        yield Draft(
            tuple(Stage(edges[p], edges[p + 1], tuple(groups[p]), tuple(shares[p])) for p in range(stages)),
            tuple(case.warmups(stages)),
        )


def random_draft(case: Case, random: np.random.Generator, *, everybody: bool = False) -> Draft:
    """As many stages as K are listed or any number, any groups and cuts, samples as even as can be; of `everybody` as
    far as micro-batches go round."""
    listed = case.problem.warmup
    stages = len(listed) if isinstance(listed, tuple) else int(random.integers(1, case.most_stages + 1))
    used = case.devices if everybody else int(random.integers(stages, case.devices + 1))
    sizes = [1] * stages
    for _ in range(min(used, stages * case.samples) - stages):
        open_to = [p for p in range(stages) if sizes[p] < case.samples]
        sizes[int(random.choice(open_to))] += 1
    devices = iter(random.permutation(case.devices).tolist())
    groups = [tuple(islice(devices, size)) for size in sizes]
    cuts = [0, *np.sort(random.choice(np.arange(1, case.layers), stages - 1, replace=False)).tolist(), case.layers]
    shares = [tuple(case.samples // len(g) + (k < case.samples % len(g)) for k in range(len(g))) for g in groups]
    parts = tuple(Stage(cuts[p], cuts[p + 1], groups[p], shares[p]) for p in range(stages))
    return Draft(parts, tuple(case.warmups(stages)))
