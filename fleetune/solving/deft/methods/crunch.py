"""crunch: the least latency with equal parts of the band (P1).

Wu, H., Chen, X., Huang, K.: Resource Management for Low-latency Cooperative Fine-tuning of Foundation Models at the
Network Edge, 2024 (LoLa-DEFT): Algorithm 2. Where latency or memory does not grow with depth on some device, counts
prove nothing: the plan is then made by matching, and says so.
"""

from fleetune.solving.deft.bottleneck import bottleneck
from fleetune.solving.deft.case import Case, Draft


def plan(case: Case) -> Draft:
    """The optimum of equal parts; on a joint problem one plan of many."""
    found = bottleneck(case.even_s)
    low_s = found.threshold if case.problem.bandwidth == "equal" else None
    return case.evenly(found.devices, low_s, found.solved_by)
