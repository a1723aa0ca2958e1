"""The paper's first baseline: every device gets as many operators (FusionLLM section 7.2).

Neither speeds, memories nor links are looked at: the devices take their runs as they are listed.
"""

import numpy as np

from fleetune.solving.opfence.case import Case, Place


def plan(case: Case, seed: int) -> Place:
    """Runs of the topological order, the first ones longer by one where it does not come out even."""
    found = np.empty(case.operators, np.int64)
    for device, run in enumerate(np.array_split(np.array(case.order), case.devices)):
        found[run] = device
    return found
