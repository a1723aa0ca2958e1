"""How many threads every device computes with: one rule for measuring, training, clock and planner."""

import math
from collections.abc import Mapping

from fleetune.contracts.fleet_request import DeviceRequest, FleetRequest
from fleetune.discovery.facts import Facts
from fleetune.errors import Refused

CPU = "cpu"


def threads(request: FleetRequest, facts: Mapping[str, Facts], accelerators: Mapping[str, str]) -> dict[str, int]:
    """device -> threads; `facts` say what each device can be given, `accelerators` where it computes.

    A device with a quota of q cores gets max(1, floor(q)): with more threads than its quota they wait for each other
    while the kernel holds some of them, for seconds. Devices without a quota divide what the quotas leave of their
    machine's cores. One that computes on a GPU gets one. Who asks for another number of threads gets it, up to the
    quota or the machine's cores; Refused above that.
    """
    return {
        asked.name: _wished(asked, facts[asked.name]) or _due(asked, request, facts, accelerators)
        for asked in request.devices
    }


def _wished(asked: DeviceRequest, found: Facts) -> int | None:
    cores = asked.emulate.cores or found.cores
    if asked.threads is not None and asked.threads > max(1, math.floor(cores)):
        whose = "its quota" if asked.emulate.cores else "its machine"
        raise Refused(
            f"device {asked.name}: threads is {asked.threads} but {whose} has {cores:.16g} cores; "
            f"ask for at most {max(1, math.floor(cores))}"
        )
    return asked.threads


def _due(
    asked: DeviceRequest, request: FleetRequest, facts: Mapping[str, Facts], accelerators: Mapping[str, str]
) -> int:
    if accelerators[asked.name] != CPU:
        return 1
    if asked.emulate.cores is not None:
        return max(1, math.floor(asked.emulate.cores))
    machine = facts[asked.name].machine
    beside = [o for o in request.devices if facts[o.name].machine == machine and accelerators[o.name] == CPU]
    quotas = sum(other.emulate.cores or 0.0 for other in beside)
    sharing = sum(other.emulate.cores is None for other in beside)
    return max(1, math.floor((facts[asked.name].cores - quotas) / sharing))
