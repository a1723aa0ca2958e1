"""eddl: data parallelism with shares in proportion to capacity.

Hao, P. and Zhang, Y.: EDDL: A Distributed Deep Learning System for Resource-limited Edge Computing Environment.
IEEE/ACM SEC 2021. Every device has the whole model; its time for a whole micro-batch decides its share.

It takes uneven devices into account, but not that few samples take longer per sample; it ignores links and memory.
"""

import numpy as np

from fleetune.solving.hpp.draft import Draft, single_stage_draft
from fleetune.solving.hpp.instance import Floats, Instance, fastest_devices, whole_model_s

MIN_TIME_SHARE = 1e-9
"""Least time that counts, as a share of the slowest device's."""


def plan(instance: Instance) -> Draft:
    """A plan on the fastest devices, as many as there are samples at most. Infeasible where warm-ups are listed for
    several stages."""
    devices = fastest_devices(instance, instance.samples)
    return single_stage_draft(
        instance, "eddl", devices, proportional(whole_model_s(instance)[devices], instance.samples)
    )


def proportional(seconds: Floats, samples: int) -> list[int]:
    """Integer shares in proportion to 1 / seconds by the largest-remainder method; a device without a sample takes one
    from the largest share."""
    capacity = (
        1.0 / np.maximum(seconds, MIN_TIME_SHARE * np.max(seconds)) if np.max(seconds) > 0 else np.ones(len(seconds))
    )
    wanted = samples * (capacity / np.sum(capacity))
    shares = np.floor(wanted).astype(np.int64)
    shares[np.argsort(shares - wanted, kind="stable")[: samples - int(np.sum(shares))]] += 1
    for k in np.flatnonzero(shares == 0):
        shares[np.argmax(shares)] -= 1
        shares[k] = 1
    return [int(share) for share in shares]
