"""compute-aware: the fastest devices take part, and the more a block demands the faster its device.

The paper's first benchmark scheme: Wu, H., Chen, X., Huang, K.: Resource Management for Low-latency Cooperative
Fine-tuning of Foundation Models at the Network Edge, 2024 (LoLa-DEFT), Section VI-A4. It knows no channels and no
memory, so that its plan may hit "the memory wall"; parts of the band are equal.

The paper has one factor f_k per device; measured times are a table, of which a device's speed is by the sum of its row
and a block's demand by the sum of its column.

channel-aware: the devices with the best channels take part, and the more a block demands the better its channel.

The paper's second benchmark scheme: Wu, H., Chen, X., Huang, K.: Resource Management for Low-latency Cooperative
Fine-tuning of Foundation Models at the Network Edge, 2024 (LoLa-DEFT), Section VI-A4, "communication-aware". It knows
no speeds of devices and no memory; parts of the band are equal.
"""

import numpy as np

from fleetune.solving.deft.instance import Allocation, Instance, Ints
from fleetune.solving.validation import Floats


def compute_aware(instance: Instance) -> Allocation:
    """Ties: the device of the lower index, and the block farther from the output, come first."""
    relative = instance.compute_s / (np.max(instance.compute_s) or 1.0)  # sums of seconds may overflow
    return instance.with_equal_bandwidth(rank_match(np.sum(relative, axis=1), np.sum(relative, axis=0)))


def rank_match(demands: Floats, costs: Floats) -> Ints:
    """Device of each block: the most demanding block [block] on the device of least cost [device], and so on."""
    blocks = np.lexsort((-np.arange(len(demands)), -demands))
    devices = np.empty(len(demands), np.intp)
    devices[blocks] = np.argsort(costs, kind="stable")[: len(demands)]
    return devices


def channel_aware(instance: Instance) -> Allocation:
    """Blocks by depth, the deepest first, for that is all that is known of their demand."""
    return instance.with_equal_bandwidth(rank_match(np.arange(instance.blocks, dtype=np.float64), -instance.efficiency))
