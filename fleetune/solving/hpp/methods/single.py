"""single: the whole model on one device, the baseline without a fleet.

The on-device training of Asteroid's Table 4 (Ye, S. et al., MobiCom 2024, doi:10.1145/3636534.3649363). It takes
each device's times and memory into account; links do not matter.
"""

import numpy as np

from fleetune.solving.hpp.draft import Draft, peak_bytes, single_stage_draft
from fleetune.solving.hpp.instance import Instance, whole_model_s


def plan(instance: Instance) -> Draft:
    """A plan on the fastest device that has the memory, or else on the fastest of all. Infeasible where warm-ups are
    listed for several stages."""
    order = np.argsort(whole_model_s(instance), kind="stable").tolist()
    drafts = [single_stage_draft(instance, "single", [device], [instance.samples]) for device in order]
    for device, draft in zip(order, drafts, strict=True):
        if peak_bytes(instance, draft.stages[0], draft.warmups[0], instance.samples) <= instance.memory_bytes[device]:
            return draft
    return drafts[0]
