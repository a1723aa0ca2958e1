"""Which devices take part."""

from collections.abc import Sequence

from fleetune.contracts.record import distinct
from fleetune.errors import Infeasible
from fleetune.planning.problem import Problem


def taking_part(problem: Problem, asked: Sequence[str]) -> tuple[str, ...]:
    """The devices that were asked for, each known to the fleet and named once; all of the fleet where none were."""
    for name in asked:
        problem.fleet.device(name)
    distinct("devices", "device", asked)
    return tuple(asked) or tuple(device.name for device in problem.fleet.devices)


def not_profiled(problem: Problem) -> str:
    """A sentence that names a device without measured times; empty where there is none."""
    known = {times.device for times in problem.profile.times}
    for device in problem.fleet.devices:
        if device.name not in known:
            return f"device {device.name} has no measured times; profile the fleet again"
    return ""


def enough_samples(problem: Problem, group: Sequence[str]) -> None:
    """Each device of a group takes at least one sample of every micro-batch."""
    if len(group) > problem.micro_batch_samples:
        raise Infeasible(
            f"micro_batch_samples is {problem.micro_batch_samples}, but a group of {len(group)} devices "
            f"({', '.join(group)}) needs at least one sample each; raise training.micro_batch_samples to "
            f"{len(group)} or name fewer devices"
        )
