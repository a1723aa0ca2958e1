"""eddl: data parallelism with shares in proportion to capacity.

Hao, P. and Zhang, Y.: EDDL: A Distributed Deep Learning System for Resource-limited Edge Computing Environment.
IEEE/ACM SEC 2021. Every device has the whole model; how fast it is with a whole micro-batch decides its share, once.

It takes uneven devices into account, but not that a device is slower per sample with few samples; it ignores links and
memory.
"""

import numpy as np

from fleetune.solving.hpp.case import Case, Floats
from fleetune.solving.hpp.draft import Draft
from fleetune.solving.hpp.whole import fastest, one_stage, whole_model_s

FREE = 1e-9
"""Of the slowest device's time: no device counts as faster than that."""


def plan(case: Case) -> Draft:
    """On every device, at most as many as there are samples (the fastest). Infeasible where warm-ups are listed for
    several stages."""
    devices = fastest(case, case.samples)
    return one_stage(case, "eddl", devices, proportional(whole_model_s(case)[devices], case.samples))


def proportional(seconds: Floats, samples: int) -> list[int]:
    """Whole shares in proportion to 1 / seconds, by the largest remainder; whoever would have none takes one from the
    largest share."""
    capacity = 1.0 / np.maximum(seconds, FREE * np.max(seconds)) if np.max(seconds) > 0 else np.ones(len(seconds))
    wanted = samples * (capacity / np.sum(capacity))
    shares = np.floor(wanted).astype(np.int64)
    shares[np.argsort(shares - wanted, kind="stable")[: samples - int(np.sum(shares))]] += 1
    for k in np.flatnonzero(shares == 0):
        shares[np.argmax(shares)] -= 1
        shares[k] = 1
    return [int(share) for share in shares]
