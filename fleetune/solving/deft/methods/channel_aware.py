"""channel-aware: the devices with the best channels take part, and the more a block demands the better its channel.

The paper's second benchmark scheme: Wu, H., Chen, X., Huang, K.: Resource Management for Low-latency Cooperative
Fine-tuning of Foundation Models at the Network Edge, 2024 (LoLa-DEFT), Section VI-A4, "communication-aware". It knows
no speeds of devices and no memory; parts of the band are equal.
"""

import numpy as np

from fleetune.solving.deft.case import Case, Draft
from fleetune.solving.deft.methods.compute_aware import ranked


def plan(case: Case) -> Draft:
    """Blocks by depth, the deepest first, for that is all that is known of their demand."""
    return case.evenly(ranked(np.arange(case.blocks, dtype=np.float64), -case.efficiency))
