"""dp: data parallelism balanced for uneven devices.

Li, M. et al.: Communication Efficient Distributed Machine Learning with the Parameter Server. NeurIPS 2014; with the
workload balancing that Asteroid §5.2 adds to it. Every device has the whole model and a share of each micro-batch.

It takes each device's measured times into account; it ignores links and memory.
"""

from fleetune.solving.hpp.draft import Draft, single_stage_draft
from fleetune.solving.hpp.instance import Instance, fastest_devices
from fleetune.solving.hpp.sample_allocation import allocate


def plan(instance: Instance) -> Draft:
    """A plan on the fastest devices, as many as there are samples at most. Infeasible where warm-ups are listed for
    several stages."""
    devices = fastest_devices(instance, instance.samples)
    seconds = (instance.forward_s[devices, 1:, -1] + instance.backward_s[devices, 1:, -1]).tolist()
    shares = allocate(seconds, [instance.samples] * len(devices), instance.samples)
    assert shares is not None, "every device may take every sample"
    return single_stage_draft(instance, "dp", devices, shares)
