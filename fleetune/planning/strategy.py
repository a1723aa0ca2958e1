"""The interface of a strategy: its problem, its methods, and the requirements that strategies check alike."""

from collections.abc import Collection, Sequence
from dataclasses import field
from typing import Any, Protocol, runtime_checkable

from fleetune.clock.costs import workspace_bytes
from fleetune.contracts.fleet import Fleet
from fleetune.contracts.plan import Plan, PlanResult
from fleetune.contracts.profile import Profile, Unit
from fleetune.contracts.record import distinct, not_negative, one_of, positive, record
from fleetune.contracts.training_request import ALWAYS, AUTO, NEVER
from fleetune.errors import Infeasible, Refused
from fleetune.formatting import exact_size


@record
class Problem:
    """One round of `micro_batches` micro-batches of `micro_batch_samples` samples each, to be planned on a fleet."""

    fleet: Fleet
    profile: Profile
    micro_batch_samples: int
    micro_batches: int
    seed: int = 0
    owners: tuple[str, ...] = ()
    """Devices that have data of their own, on which lanes begin; neutral: empty, any device may be given data."""
    options: dict[str, Any] = field(default_factory=dict)
    """Options as plain values; each strategy parses them into its own record."""
    recompute: str = NEVER
    """Whether segments may recompute activations, as in `TrainingRequest`."""

    def __post_init__(self) -> None:
        positive("problem", micro_batch_samples=self.micro_batch_samples, micro_batches=self.micro_batches)
        not_negative("problem", seed=self.seed)
        one_of("problem", "recompute", self.recompute, (AUTO, ALWAYS, NEVER))

    @staticmethod
    def of(result: PlanResult, fleet: Fleet, profile: Profile, seed: int, owners: tuple[str, ...] = ()) -> "Problem":
        """Return the problem that a plan solves. owners: devices that have data of their own."""
        return Problem(
            fleet=fleet,
            profile=profile,
            micro_batch_samples=result.plan.micro_batch_samples,
            micro_batches=result.plan.micro_batches,
            seed=seed,
            owners=owners,
            options=result.options,
            recompute=result.recompute,
        )


class Strategy(Protocol):
    """A planning method: the same problem gives the same plan, unless an option limits its time (`time_limit_s`).

    It draws random numbers from the problem's seed only, and reads no files and no devices.

    Options are plain values in `problem.options`. The strategy parses them with `json_io.load` into its own record, so
    that an unknown option is refused by name with the list of known ones.
    """

    @property
    def name(self) -> str:
        """Name in run files, in lower case."""

    @property
    def citation(self) -> str:
        """BibTeX of the paper that the strategy follows; entries are separated by empty lines."""

    @property
    def summary(self) -> str:
        """One line for a list of strategies."""

    @property
    def options(self) -> type:
        """The record type of its options."""

    @property
    def methods(self) -> dict[str, str]:
        """option -> kind of problem whose methods are its allowed values."""

    def unsupported_reason(self, problem: Problem) -> str:
        """One sentence that says why the strategy cannot solve the problem; empty if it can."""

    def plan(self, problem: Problem) -> PlanResult:
        """Solve the problem; the caller fills in `solve_s`.

        Raises Infeasible, naming the binding constraint, if no plan of this strategy satisfies the problem, and Refused
        for malformed options.
        """


@runtime_checkable
class Revising(Protocol):
    """A strategy with lanes, which keep their devices, their samples and their micro-batches when others are lost."""

    def revise(self, problem: Problem, plan: Plan, lost: Collection[str]) -> PlanResult:
        """Return the plan that follows `plan` without the lost devices; its lanes are some of those of `plan`.

        problem: on the devices that are left. Infeasible or Refused as `plan` of `Strategy`.
        """


def participants(problem: Problem, requested: Sequence[str]) -> tuple[str, ...]:
    """The requested devices, each known to the fleet and named once; all of the fleet where none are requested."""
    for name in requested:
        problem.fleet.device(name)
    distinct("devices", "device", requested)
    return tuple(requested) or tuple(device.name for device in problem.fleet.devices)


def unprofiled_reason(problem: Problem) -> str:
    """An error message that names a device without measured times; empty where there is none."""
    known = {times.device for times in problem.profile.times}
    for device in problem.fleet.devices:
        if device.name not in known:
            return f"device {device.name} has no measured times; profile the fleet again"
    return ""


def free_bytes(problem: Problem, device: str) -> int:
    """Memory of a device beside an idle worker and the workspace of any unit; negative if it is too small for these."""
    beside_bytes = workspace_bytes(problem.profile.units, problem.micro_batch_samples)
    return problem.fleet.device(device).memory_bytes - problem.profile.times_of(device).runtime_bytes - beside_bytes


def devices_with_room(problem: Problem, names: Sequence[str]) -> dict[str, int]:
    """Device -> bytes beside an idle worker, without devices too small for one. Infeasible: all are too small."""
    free = {name: free_bytes(problem, name) for name in names}
    roomy = {name: size for name, size in free.items() if size >= 0}
    if not roomy:
        best = max(names, key=lambda name: free[name])
        raise Infeasible(f"device {best} lacks {exact_size(-free[best])} for an idle worker; give it more memory")
    return roomy


def require_trainable(problem: Problem) -> None:
    """Refused where a micro-batch has fewer samples than a unit can be trained on."""
    for unit in problem.profile.units:
        if unit.min_samples > problem.micro_batch_samples:
            raise Refused(
                f"training.micro_batch_samples is {problem.micro_batch_samples}, but unit {unit.name} needs at least "
                f"{unit.min_samples} samples to be trained; raise it to {unit.min_samples} or more"
            )


def require_samples(problem: Problem, group: Sequence[str], least: int = 1) -> None:
    """Infeasible where a micro-batch has not `least` samples for each device of a group."""
    if len(group) * least > problem.micro_batch_samples:
        raise sample_shortage(problem, group, least)


def sample_shortage(problem: Problem, group: Sequence[str], least: int) -> Infeasible:
    """The error for a group whose devices need more samples than a micro-batch has."""
    if 1 < least == problem.micro_batch_samples:
        unit = next(unit.name for unit in problem.profile.units if unit.min_samples == least)
        return Infeasible(
            f"a group of {len(group)} devices ({', '.join(group)}) cannot share the samples of unit {unit}, whose "
            "batch norms or random draws need the whole micro-batch on one device; name one device, or take strategy "
            "asteroid"
        )
    each = "one sample" if least == 1 else f"{least} samples"
    return Infeasible(
        f"micro_batch_samples is {problem.micro_batch_samples}, but a group of {len(group)} devices "
        f"({', '.join(group)}) needs at least {each} each; raise training.micro_batch_samples to "
        f"{len(group) * least} or name fewer devices"
    )


def memory_shortage(device: str, missing_bytes: float, units: Sequence[Unit], samples: int, kept: int) -> Infeasible:
    """The error for a device whose memory is too small for a segment."""
    span = units[0].name if len(units) == 1 else f"{units[0].name} .. {units[-1].name}"
    return Infeasible(
        f"device {device} lacks {exact_size(missing_bytes)} for the cheapest segment it could run ({span}, {samples} "
        f"samples, {kept} micro-batches kept); give it more memory, leave it out or lower training.micro_batch_samples"
    )
