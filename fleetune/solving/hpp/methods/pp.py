"""pp: pipeline parallelism, one device a stage, balanced for uneven devices.

Huang, Y. et al.: GPipe: Efficient Training of Giant Neural Networks using Pipeline Parallelism. NeurIPS 2019,
arXiv:1811.06965; with the workload balancing and the 1F1B schedule that Asteroid §5.2 adds to it. Cuts minimise the
slowest stage.

It takes each device's measured times into account; it ignores traffic across cuts, links and memory.
"""

import numpy as np

from fleetune.solving.hpp.chain_cuts import best_cuts, run_edges
from fleetune.solving.hpp.draft import Draft, DraftStage
from fleetune.solving.hpp.instance import Floats, Instance, fastest_devices

RUNS = 1024
"""Longer chains of layers are joined into this many runs."""


def plan(instance: Instance) -> Draft:
    """A plan on the fastest devices in descending order of memory (Asteroid's order), with as many stages as layers and
    devices allow or as warm-ups are listed."""
    listed = instance.problem.warmup
    count = instance.max_stages if isinstance(listed, str) else len(listed)
    devices = sorted(fastest_devices(instance, count), key=lambda device: -instance.memory_bytes[device])
    edges = run_edges(instance, max(RUNS, count))
    both_s = (instance.forward_s[devices, -1] + instance.backward_s[devices, -1])[:, edges]

    def seconds(p: int) -> Floats:
        result: Floats = both_s[p][None, :] - both_s[p][:, None]
        return result

    best = best_cuts(count, seconds)
    assert best is not None, "all costs are finite"
    cuts = edges[np.array(best)].tolist()
    spans = zip(cuts[:-1], cuts[1:], devices, strict=True)
    stages = tuple(DraftStage(first, end, (device,), (instance.samples,)) for first, end, device in spans)
    return Draft(stages, tuple(instance.warmups(count)))
