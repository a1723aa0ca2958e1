"""Requirements of plans: the devices that take part, and error messages for what they lack."""

from collections.abc import Sequence

from fleetune.contracts.profile import Unit
from fleetune.contracts.record import distinct
from fleetune.errors import Infeasible
from fleetune.planning.problem import Problem


def taking_part(problem: Problem, requested: Sequence[str]) -> tuple[str, ...]:
    """The requested devices, each known to the fleet and named once; all of the fleet where none are requested."""
    for name in requested:
        problem.fleet.device(name)
    distinct("devices", "device", requested)
    return tuple(requested) or tuple(device.name for device in problem.fleet.devices)


def not_profiled(problem: Problem) -> str:
    """An error message that names a device without measured times; empty where there is none."""
    known = {times.device for times in problem.profile.times}
    for device in problem.fleet.devices:
        if device.name not in known:
            return f"device {device.name} has no measured times; profile the fleet again"
    return ""


def enough_samples(problem: Problem, group: Sequence[str]) -> None:
    """Infeasible where a group has more devices than a micro-batch has samples."""
    if len(group) > problem.micro_batch_samples:
        raise Infeasible(
            f"micro_batch_samples is {problem.micro_batch_samples}, but a group of {len(group)} devices "
            f"({', '.join(group)}) needs at least one sample each; raise training.micro_batch_samples to "
            f"{len(group)} or name fewer devices"
        )


def memory_shortage(device: str, missing_bytes: float, units: Sequence[Unit], samples: int, kept: int) -> Infeasible:
    """The error for a device whose memory is too small for a segment."""
    span = units[0].name if len(units) == 1 else f"{units[0].name} .. {units[-1].name}"
    return Infeasible(
        f"device {device} lacks {format_bytes(missing_bytes)} for the cheapest segment it could run ({span}, {samples} "
        f"samples, {kept} micro-batches kept); give it more memory, leave it out or lower training.micro_batch_samples"
    )


def format_bytes(size: float) -> str:
    """Format bytes for a message: exactly, and in MB from a million on."""
    exact = f"{int(size)} bytes"
    return exact if size < 1e6 else f"{size / 1e6:.1f} MB ({exact})"
