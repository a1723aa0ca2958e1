"""The paper's benchmark schemes: Wu, H., Chen, X., Huang, K., LoLa-DEFT, 2024, Section VI-A4.

compute-aware: the fastest devices take part, and the more demanding a block is, the faster its device. It ignores
channels and memory, so that its plan may hit "the memory wall". The paper has one factor f_k per device; measured times
are a table, so a device's speed is judged by the sum of its row and a block's demand by the sum of its column.

channel-aware (the paper's "communication-aware"): the devices with the best channels take part, and the deeper a block
is, the better its channel. It ignores speeds and memory. Both divide the band equally.
"""

import numpy as np

from fleetune.arrays import Floats
from fleetune.solving.deft.instance import Allocation, Instance, Ints


def compute_aware(instance: Instance) -> Allocation:
    """Return the compute-aware plan. Ties: the device of the lower index and the block farther from the output
    first."""
    relative = instance.compute_s / (np.max(instance.compute_s) or 1.0)  # sums of seconds may overflow
    return instance.with_equal_bandwidth(rank_match(np.sum(relative, axis=1), np.sum(relative, axis=0)))


def rank_match(demands: Floats, costs: Floats) -> Ints:
    """Return [block] its device: the most demanding block on the device of least cost, and so on."""
    blocks = np.lexsort((-np.arange(len(demands)), -demands))
    devices = np.empty(len(demands), np.intp)
    devices[blocks] = np.argsort(costs, kind="stable")[: len(demands)]
    return devices


def channel_aware(instance: Instance) -> Allocation:
    """Return the channel-aware plan, with depth as the only measure of demand."""
    return instance.with_equal_bandwidth(rank_match(np.arange(instance.blocks, dtype=np.float64), -instance.efficiency))
