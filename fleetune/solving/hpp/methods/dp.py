"""dp: data parallelism balanced for uneven devices.

Li, M. et al.: Communication Efficient Distributed Machine Learning with the Parameter Server. NeurIPS 2014; with the
workload balancing that Asteroid §5.2 adds to it. Every device has the whole model and a share of each micro-batch.

It takes each device's measured times into account; it ignores links and memory.
"""

import numpy as np

from fleetune.solving.hpp.case import Case, Floats
from fleetune.solving.hpp.draft import Draft
from fleetune.solving.hpp.whole import fastest, one_stage


def plan(case: Case) -> Draft:
    """On every device, at most as many as there are samples (the fastest). Infeasible where warm-ups are listed for
    several stages."""
    devices = fastest(case, case.samples)
    return one_stage(case, "dp", devices, deal(case.forward_s[devices, :, -1] + case.backward_s[devices, :, -1]))


def deal(seconds: Floats) -> list[int]:
    """Shares of all samples, at least one each, the slowest as fast as can be.

    seconds: [device, samples 0..B]. Exact where more samples never take less time; where they do, a device counts as
    no faster than with fewer samples.
    """
    batch = seconds.shape[1] - 1
    never_less = np.maximum.accumulate(seconds, axis=1)
    never_less[:, 0] = -np.inf

    def held(within_s: float) -> list[int]:
        return [int(np.searchsorted(row, within_s, side="right")) - 1 for row in never_less]

    candidates = np.unique(never_less[:, 1:])
    low, high = int(np.searchsorted(candidates, np.max(never_less[:, 1]))), len(candidates) - 1
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if sum(held(candidates[middle])) >= batch else (middle + 1, high)
    shares = [1] * len(never_less)
    for within_s in candidates[max(low - 1, 0) : low + 1]:
        for k, most in enumerate(held(within_s)):
            shares[k] += max(min(most - shares[k], batch - sum(shares)), 0)
    return shares
