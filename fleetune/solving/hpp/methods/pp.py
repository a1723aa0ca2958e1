"""pp: pipeline parallelism, one device a stage, balanced for uneven devices.

Huang, Y. et al.: GPipe: Efficient Training of Giant Neural Networks using Pipeline Parallelism. NeurIPS 2019,
arXiv:1811.06965; with the workload balancing and the 1F1B schedule that Asteroid §5.2 adds to it. Cuts make the slowest
stage as fast as can be.

It takes each device's measured times into account; it ignores what crosses the cuts, links and memory.
"""

import numpy as np

from fleetune.solving.hpp.case import Case, Floats
from fleetune.solving.hpp.chain import runs
from fleetune.solving.hpp.cuts import best_cuts
from fleetune.solving.hpp.draft import Draft, Stage
from fleetune.solving.hpp.whole import fastest

RUNS = 1024
"""A longer chain of layers is cut between this many runs of them."""


def plan(case: Case) -> Draft:
    """As many stages as layers and devices allow, or as warm-ups are listed, on the fastest devices in descending
    order of memory (as Asteroid sorts them)."""
    listed = case.problem.warmup
    count = case.most_stages if isinstance(listed, str) else len(listed)
    devices = sorted(fastest(case, count), key=lambda device: -case.memory_bytes[device])
    edges = runs(case, max(RUNS, count))
    both_s = (case.forward_s[devices, -1] + case.backward_s[devices, -1])[:, edges]

    def seconds(p: int) -> Floats:
        result: Floats = both_s[p][None, :] - both_s[p][:, None]
        return result

    best = best_cuts(count, seconds)
    assert best is not None, "nothing costs infinitely much"
    cuts = edges[np.array(best)].tolist()
    spans = zip(cuts[:-1], cuts[1:], devices, strict=True)
    stages = tuple(Stage(first, end, (device,), (case.samples,)) for first, end, device in spans)
    return Draft(stages, tuple(case.warmups(count)))
