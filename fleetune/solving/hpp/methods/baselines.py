"""Baselines of one or two steps: single, dp, eddl and pp.

single: the whole model on one device, the baseline without a fleet.

The on-device training of Asteroid's Table 4 (Ye, S. et al., MobiCom 2024, doi:10.1145/3636534.3649363). It takes
each device's times and memory into account; links do not matter.

dp: data parallelism balanced for uneven devices.

Li, M. et al.: Communication Efficient Distributed Machine Learning with the Parameter Server. NeurIPS 2014; with the
workload balancing that Asteroid §5.2 adds to it. Every device has the whole model and a share of each micro-batch.

It takes each device's measured times into account; it ignores links and memory.

eddl: data parallelism with shares in proportion to capacity.

Hao, P. and Zhang, Y.: EDDL: A Distributed Deep Learning System for Resource-limited Edge Computing Environment.
IEEE/ACM SEC 2021. Every device has the whole model; its time for a whole micro-batch decides its share.

It takes uneven devices into account, but not that few samples take longer per sample; it ignores links and memory.

pp: pipeline parallelism, one device a stage, balanced for uneven devices.

Huang, Y. et al.: GPipe: Efficient Training of Giant Neural Networks using Pipeline Parallelism. NeurIPS 2019,
arXiv:1811.06965; with the workload balancing and the 1F1B schedule that Asteroid §5.2 adds to it. Cuts minimise the
slowest stage.

It takes each device's measured times into account; it ignores traffic across cuts, links and memory.
"""

import numpy as np

from fleetune.arrays import Floats
from fleetune.solving.hpp.chain_cuts import best_cuts, run_edges
from fleetune.solving.hpp.draft import Draft, DraftStage, peak_bytes, single_stage_draft
from fleetune.solving.hpp.instance import Instance, fastest_devices, whole_model_s
from fleetune.solving.hpp.sample_allocation import allocate

MIN_TIME_SHARE = 1e-9
"""Least time that counts, as a share of the slowest device's."""
RUNS = 1024
"""Longer chains of layers are joined into this many runs."""


def single(instance: Instance) -> Draft:
    """A plan on the fastest device that has the memory, or else on the fastest of all. Infeasible where warm-ups are
    listed for several stages."""
    order = np.argsort(whole_model_s(instance), kind="stable").tolist()
    drafts = [single_stage_draft(instance, "single", [device], [instance.samples]) for device in order]
    for device, draft in zip(order, drafts, strict=True):
        if peak_bytes(instance, draft.stages[0], draft.warmups[0], instance.samples) <= instance.memory_bytes[device]:
            return draft
    return drafts[0]


def dp(instance: Instance) -> Draft:
    """A plan on the fastest devices, as many as there are samples for at most. Infeasible where warm-ups are listed for
    several stages."""
    devices, least = fastest_devices(instance, instance.max_group), instance.least_samples(0, instance.layers)
    seconds = (instance.forward_s[devices, 1:, -1] + instance.backward_s[devices, 1:, -1]).tolist()
    shares = allocate(seconds, [instance.samples] * len(devices), instance.samples, least)
    assert shares is not None, "every device may take every sample"
    return single_stage_draft(instance, "dp", devices, shares)


def eddl(instance: Instance) -> Draft:
    """A plan on the fastest devices, as many as there are samples for at most. Infeasible where warm-ups are listed for
    several stages."""
    devices, least = fastest_devices(instance, instance.max_group), instance.least_samples(0, instance.layers)
    shares = proportional(whole_model_s(instance)[devices], instance.samples, least)
    return single_stage_draft(instance, "eddl", devices, shares)


def proportional(seconds: Floats, samples: int, least: int = 1) -> list[int]:
    """Integer shares in proportion to 1 / seconds by the largest-remainder method; a device with less than `least`
    takes one after another from the largest share."""
    capacity = (
        1.0 / np.maximum(seconds, MIN_TIME_SHARE * np.max(seconds)) if np.max(seconds) > 0 else np.ones(len(seconds))
    )
    wanted = samples * (capacity / np.sum(capacity))
    shares = np.floor(wanted).astype(np.int64)
    shares[np.argsort(shares - wanted, kind="stable")[: samples - int(np.sum(shares))]] += 1
    for k in np.repeat(np.arange(len(shares)), np.maximum(least - shares, 0)):
        shares[np.argmax(shares)] -= 1
        shares[k] += 1
    return [int(share) for share in shares]


def pp(instance: Instance) -> Draft:
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
