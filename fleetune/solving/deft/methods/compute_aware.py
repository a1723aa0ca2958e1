"""compute-aware: the fastest devices take part, and the more a block demands the faster its device.

The paper's first benchmark scheme: Wu, H., Chen, X., Huang, K.: Resource Management for Low-latency Cooperative
Fine-tuning of Foundation Models at the Network Edge, 2024 (LoLa-DEFT), Section VI-A4. It knows no channels and no
memory, so that its plan may hit "the memory wall"; parts of the band are equal.

The paper has one factor f_k per device; measured times are a table, of which a device's speed is by the sum of its row
and a block's demand by the sum of its column.
"""

import numpy as np

from fleetune.solving.deft.case import Case, Draft, Ints
from fleetune.solving.proofs import Floats


def plan(case: Case) -> Draft:
    """Ties: the device of the lower index, and the block farther from the output, come first."""
    relative = case.compute_s / (np.max(case.compute_s) or 1.0)  # sums of seconds may overflow
    return case.evenly(ranked(np.sum(relative, axis=1), np.sum(relative, axis=0)))


def ranked(demands: Floats, costs: Floats) -> Ints:
    """Device of each block: the most demanding block [block] on the device of least cost [device], and so on."""
    blocks = np.lexsort((-np.arange(len(demands)), -demands))
    devices = np.empty(len(demands), np.intp)
    devices[blocks] = np.argsort(costs, kind="stable")[: len(demands)]
    return devices
