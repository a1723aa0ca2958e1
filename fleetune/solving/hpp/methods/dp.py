"""dp: data parallelism balanced for uneven devices.

Li, M. et al.: Communication Efficient Distributed Machine Learning with the Parameter Server. NeurIPS 2014; with the
workload balancing that Asteroid §5.2 adds to it. Every device has the whole model and a share of each micro-batch.

It takes each device's measured times into account; it ignores links and memory.
"""

from fleetune.solving.hpp.allocation import allocate
from fleetune.solving.hpp.case import Case
from fleetune.solving.hpp.draft import Draft
from fleetune.solving.hpp.whole import fastest, one_stage


def plan(case: Case) -> Draft:
    """On every device, at most as many as there are samples (the fastest). Infeasible where warm-ups are listed for
    several stages."""
    devices = fastest(case, case.samples)
    seconds = (case.forward_s[devices, 1:, -1] + case.backward_s[devices, 1:, -1]).tolist()
    shares = allocate(seconds, [case.samples] * len(devices), case.samples)
    assert shares is not None, "everybody can take everything"
    return one_stage(case, "dp", devices, shares)
