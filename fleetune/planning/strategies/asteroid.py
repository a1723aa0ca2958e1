"""asteroid: hybrid pipelines; contiguous segments, each on a group of devices that share its samples.

After Ye et al., Asteroid: Resource-Efficient Hybrid Pipeline Parallelism for Collaborative DNN Training on
Heterogeneous Edge Devices, MobiCom 2024 (doi:10.1145/3636534.3649363). `fleetune.solving.hpp` solves the mathematical
problem: `method: asteroid` is the paper's dynamic program (Algorithms 1 and 2); `search` is ours, minimises the round
of the exact simulation instead of the paper's formula, and leaves out devices that slow the round. Deviations: bytes
on links cost processor time (`clock.costs`), and units are joined where no cut is possible.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar, NamedTuple

from fleetune.clock import Clock
from fleetune.clock.costs import HELD_VERSIONS, state_bytes
from fleetune.contracts import json_io
from fleetune.contracts.plan import PlanResult
from fleetune.contracts.profile import Profile
from fleetune.contracts.record import one_of, positive, record
from fleetune.errors import Infeasible, Refused
from fleetune.formatting import exact_size
from fleetune.planning import papers
from fleetune.planning.backups import rounds_between, with_backups
from fleetune.planning.compression import byte_shares, check_compression, check_ratio, compressed
from fleetune.planning.hpp_problem import PosedProblem, in_one_stage, to_hpp_problem, to_plan, with_reserves
from fleetune.planning.plan_result import plan_result
from fleetune.planning.strategy import Problem, participants, unprofiled_reason
from fleetune.solving.hpp.problem import Solution
from fleetune.solving.hpp.solve import solve

MAX_PLANS = 12
"""Maximum number of plans before giving up on backups."""


@record
class Options:
    """Options of `asteroid`."""

    method: str = "search"
    """Method of kind "hpp" (`fleetune solve --list`)."""
    devices: tuple[str, ...] = ()
    """Names of the devices that may be used; empty: the whole fleet."""
    every_device: bool = False
    """True: `search` must use all devices; False: it leaves out those that slow the round. Only with `search`."""
    layers: str | int = "units"
    """Granularity of cuts: `units`, the model's own `blocks`, or a number of layers of about equal work."""
    warmup: str | tuple[int, ...] = "2(P-p)-1"
    """Name of a policy, K of every segment (which fixes their number), or `free`: chosen within memory."""
    snapshots: int = 0
    """1: every device reserves memory for a rollback copy of its trained parameters and optimizer state."""
    backups: int = 0
    """1: every device takes a snapshot of what it trains every few rounds. What only one device trains is backed up on
    a device of the next segment (cyclically), so that its loss costs no more than those rounds. Frozen weights need no
    backup: every device can read them again. A plan of one device has neither, since no other device is at work that
    could hold them; with `every_device` there is one."""
    compression: str | None = None
    """`auto`: for each link the codec and ratio that shorten the forecast round most within `compression_loss`, none
    where none does; or the name of one codec, for the links where it shortens the round (lossy). `forward-mask`: top-k
    for values, and gradients at what it kept. None: dense."""
    compression_loss: float | None = None
    """With auto: codecs are allowed whose loss, the relative L2 norm of what they change in a message, is at most this
    on Gaussian data and on an activation of MiniLM-L6; by default 0.02."""
    compression_feedback: bool = False
    """True: what a message loses is added to the next one of the same micro-batch (error feedback)."""
    compression_ratio: float | None = None
    """Compression of links between segments by FusionLLM's top-k (lossy): the slowest link sends about one byte in so
    many; None: dense."""
    time_limit_s: float | None = None
    """Seconds that `search` may take, with plans that may differ between runs; None: a fixed amount of work. Other
    methods refuse it."""

    def __post_init__(self) -> None:
        one_of("asteroid", "snapshots", self.snapshots, (0, 1))
        one_of("asteroid", "backups", self.backups, (0, 1))
        check_ratio("asteroid", self.compression_ratio)
        check_compression("asteroid", self)
        if self.time_limit_s is not None:
            positive("asteroid", time_limit_s=self.time_limit_s)
        searches = {"every_device": self.every_device, "time_limit_s": self.time_limit_s is not None}
        for option in (option for option, given in searches.items() if given and self.method != "search"):
            raise Refused(
                f"asteroid: {option} is an option of method search, and method {self.method} does not use it; leave "
                "one of them out"
            )
        if self.method == "hetpipe":
            raise Refused("asteroid: method hetpipe is asynchronous and only for comparison; choose another")


class Asteroid:
    """Plans segments, groups, shares and warm-ups in one search."""

    name = "asteroid"
    options: ClassVar[type] = Options
    methods: ClassVar[dict[str, str]] = {"method": "hpp"}
    summary = "pipeline and data parallel at once; cuts, groups and shares searched, slow devices left out"
    citation = papers.ASTEROID

    def unsupported_reason(self, problem: Problem) -> str:
        """Names a device without measured times."""
        return unprofiled_reason(problem)

    def plan(self, problem: Problem) -> PlanResult:
        """The plan of the requested method, compressed if requested."""
        options = json_io.load(Options, problem.options, "strategy asteroid")
        names = participants(problem, options.devices)
        snapshots = max(options.snapshots, HELD_VERSIONS * options.backups)
        posed = to_hpp_problem(problem, names, layers=options.layers, warmup=options.warmup, snapshots=snapshots)
        if options.every_device and len(posed.problem.devices) < len(names):
            idle = set(names) - {device.name for device in posed.problem.devices}
            raise Infeasible(f"every_device: {min(idle)} lacks memory even for an idle worker; give it more")
        solve_once = _solve_with_backups if options.backups else _solve
        clock = Clock(problem.fleet, problem.profile)
        solutions = [solve_once(_with_bytes(posed, share), options, problem) for share in byte_shares(options)]
        joined = _in_one_segment(posed, options, problem)
        solutions += joined
        dense = [to_plan(self.name, problem, posed, one) for one in solutions]
        if options.backups:  # before codecs, whose error feedback has what memory these leave
            dense = [with_backups(plan, problem, clock) for plan in dense]
        plans = [compressed(plan, clock, options) for plan in dense]
        plan = min(plans, key=clock.round_s) if len(plans) > 1 else plans[0]
        if plan.backups and plan.links:
            plan = replace(plan, backup_every_rounds=rounds_between(plan, problem, clock))
        bound_s = None if plan.links else _bound_s(solutions[0], joined, problem.profile)
        found = plan_result(plan, problem, clock, self.citation, bound_s=bound_s)
        return replace(found, method=options.method)


def _in_one_segment(posed: PosedProblem, options: Options, planned: Problem) -> list[Solution]:
    """The best plan of one segment, where segments that share weights would each hold them, and sum their gradients.

    The search knows nothing of this, and the clock, which does, chooses. Empty where no plan has one segment.
    """
    searches = options.method == "search" and not isinstance(options.warmup, tuple)
    if not planned.profile.shares_weights or not searches:
        return []
    try:
        return [_solve(in_one_stage(posed, planned.profile), options, planned)]
    except Infeasible:
        return []


def _bound_s(solution: Solution, joined: Sequence[Solution], profile: Profile) -> float | None:
    """The lower bound for dense links, which holds for no others.

    The search counts a weight that units share once for each of them. Where only the first and the last unit with
    weights do, that is right for all plans but those of one segment, which have a bound of their own (joined).
    """
    if not profile.shares_weights:
        return solution.lower_bound
    holders = [unit.name for unit in profile.units if unit.tied or unit.frozen_tied]
    weighty = [unit.name for unit in profile.units if unit.param_bytes]
    bounds = [each.lower_bound for each in (solution, *joined)]
    known = [bound for bound in bounds if bound is not None]
    apart = holders == [weighty[0], weighty[-1]] and joined and len(known) == len(bounds)
    return min(known) if apart else None


def _with_bytes(posed: PosedProblem, share: float) -> PosedProblem:
    """The problem with cuts that this share of all bytes crosses."""
    if share == 1.0:
        return posed
    layers = tuple(
        replace(
            layer,
            output_bytes=round(layer.output_bytes * share),
            gradient_bytes=None if layer.gradient_bytes is None else round(layer.gradient_bytes * share),
        )
        for layer in posed.problem.layers
    )
    return posed._replace(problem=replace(posed.problem, layers=layers))


def _solve(posed: PosedProblem, options: Options, planned: Problem) -> Solution:
    """Solve by the requested method. Infeasible also if a method that ignores memory exceeds a budget."""
    try:
        solution = solve(
            posed.problem,
            method=options.method,
            time_limit_s=options.time_limit_s,
            seed=planned.seed,
            every_device=options.every_device,
            extras=posed.extras,
        )
    except Infeasible as error:
        raise Infeasible(f"{error} (budgets are memory less what an idle worker holds)") from None
    if not solution.feasible:
        raise Infeasible(f"method {options.method}: {solution.reason}; choose method search, which respects memory")
    return solution


def _solve_with_backups(posed: PosedProblem, options: Options, planned: Problem) -> Solution:
    """The first plan whose backups fit.

    The size of a backup depends on the plan, so the first plan reserves nothing. As long as a backup does not fit, its
    device reserves that much memory and the problem is solved again.
    """
    reserved_bytes: dict[str, int] = {}
    for _ in range(MAX_PLANS):
        try:
            solution = _solve(with_reserves(posed, reserved_bytes), options, planned)
        except Infeasible as error:
            raise Infeasible(f"{error}{_reserves_in_words(reserved_bytes)}") from None
        shortage = _backup_shortage(posed, solution, planned.profile)
        if shortage is None:
            return solution
        reserved_bytes[shortage.device] = shortage.needed_bytes
    raise Infeasible(
        f"each of {MAX_PLANS} plans lacks memory for a backup{_reserves_in_words(reserved_bytes)}; "
        "give these devices more memory or set strategy.options.backups=0"
    )


def _reserves_in_words(reserved_bytes: dict[str, int]) -> str:
    reserves = ", ".join(f"{exact_size(size)} on {name}" for name, size in reserved_bytes.items())
    return f"; memory reserved for backups: {reserves}" if reserves else ""


class BackupShortage(NamedTuple):
    """A backup that does not fit; `device` is the one with the most free memory in the group that must keep it."""

    device: str
    needed_bytes: int


def _backup_shortage(posed: PosedProblem, solution: Solution, profile: Profile) -> BackupShortage | None:
    """The first backup that fits no device of the next segment; None if all fit or the plan has one segment."""
    free_bytes = {d.name: d.memory_bytes - solution.memory_bytes.get(d.name, 0) for d in posed.problem.devices}
    stages = solution.stages
    for stage, following in zip(stages, (*stages[1:], stages[0]), strict=True):
        first, end = (posed.edges[layer] for layer in stage.layers)
        needed = HELD_VERSIONS * state_bytes((unit.name for unit in profile.units[first:end]), profile)
        roomiest = max((device.name for device in following.devices), key=lambda name: free_bytes[name])
        if len(stages) > 1 and len(stage.devices) == 1 and needed > free_bytes[roomiest]:
            return BackupShortage(roomiest, needed)
    return None
