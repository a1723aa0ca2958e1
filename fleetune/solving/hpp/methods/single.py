"""single: the whole model on one device, as where there is no fleet.

The on-device training of Asteroid's Table 4 (Ye, S. et al., MobiCom 2024, doi:10.1145/3636534.3649363). It knows each
device's times and memory; links do not matter to it.
"""

import numpy as np

from fleetune.solving.hpp.case import Case
from fleetune.solving.hpp.draft import Draft, peak_bytes
from fleetune.solving.hpp.whole import one_stage, whole_model_s


def plan(case: Case) -> Draft:
    """On the fastest of all where none has the memory. Infeasible where warm-ups are listed for several stages."""
    order = np.argsort(whole_model_s(case), kind="stable").tolist()
    drafts = [one_stage(case, "single", [device], [case.samples]) for device in order]
    for device, draft in zip(order, drafts, strict=True):
        if peak_bytes(case, draft.stages[0], draft.warmups[0], case.samples) <= case.memory_bytes[device]:
            return draft
    return drafts[0]
