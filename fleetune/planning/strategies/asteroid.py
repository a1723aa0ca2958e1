"""asteroid: hybrid pipelines; contiguous segments, each on a group of devices that share its samples.

After Ye et al., Asteroid: Resource-Efficient Hybrid Pipeline Parallelism for Collaborative DNN Training on
Heterogeneous Edge Devices, MobiCom 2024 (doi:10.1145/3636534.3649363). The planning itself is `fleetune.solving.hpp`,
which knows numbers only: `method: asteroid` is the paper's dynamic program (Algorithms 1 and 2), `search` ours, which
judges by the exact simulation instead of the paper's formula, and leaves out devices that slow the round. Deviations:
bytes on links cost processor time (`clock.costs`), units join where a cut is impossible.
"""

import math
from dataclasses import replace
from typing import ClassVar, NamedTuple

from fleetune.clock import Clock
from fleetune.contracts import wire
from fleetune.contracts.plan import PlanResult
from fleetune.contracts.record import one_of, positive, record
from fleetune.errors import Infeasible, Refused
from fleetune.planning.parts.hpp_problem import PosedProblem, plan_of, problem_of, with_reserves
from fleetune.planning.parts.plan_result import plan_result
from fleetune.planning.parts.requirements import format_bytes, not_profiled, taking_part
from fleetune.planning.parts.top_k import check_ratio, with_top_k
from fleetune.planning.problem import Problem
from fleetune.solving.hpp.problem import Solution
from fleetune.solving.hpp.solve import solve

TRIES = 12
"""Plans made until one has room for all backups."""


@record
class Options:
    """Of `asteroid`."""

    method: str = "search"
    """Of kind "hpp" (`fleetune solve --list`)."""
    devices: tuple[str, ...] = ()
    """Which ones may take part; all of the fleet where none are named."""
    every_device: bool = False
    """Whether `search` must use all; otherwise it leaves out those that slow the round."""
    layers: str | int = "units"
    """What may be cut apart: `units`, the model's own `blocks`, or a number of layers of about equal work."""
    warmup: str | tuple[int, ...] = "2(P-p)-1"
    """A policy's name, K of every segment (which fixes how many there are), or `free`: chosen within memory."""
    snapshots: int = 0
    """1: every device has room for a rollback copy of what it trains and its optimizer state."""
    backups: int = 0
    """1: a device of the next segment has room for what a segment of one device trains and its optimizer state (the
    first segment is next to the last). Frozen weights need no backup: every device can read them again."""
    compression_ratio: float | None = None
    """Top-k on links between segments as FusionLLM's, on top of the plan: the slowest sends about one of so many
    bytes (lossy); None: everything is sent dense."""
    time_limit_s: float | None = None
    """None: a fixed amount of work; else `search` goes on until then, and may answer differently from run to run."""

    def __post_init__(self) -> None:
        one_of("asteroid", "snapshots", self.snapshots, (0, 1))
        one_of("asteroid", "backups", self.backups, (0, 1))
        check_ratio("asteroid", self.compression_ratio)
        if self.time_limit_s is not None:
            positive("asteroid", time_limit_s=self.time_limit_s)
        if self.method == "hetpipe":
            raise Refused("asteroid: method hetpipe is asynchronous and only for comparison; choose another")


class Asteroid:
    """Segments, groups, shares and warm-ups in one search."""

    name = "asteroid"
    options: ClassVar[type] = Options
    methods: ClassVar[dict[str, str]] = {"method": "hpp"}
    summary = "pipeline and data parallel at once; cuts, groups and shares searched, slow devices left out"
    citation = (
        "Ye, S. et al.: Asteroid: Resource-Efficient Hybrid Pipeline Parallelism for Collaborative DNN Training on "
        "Heterogeneous Edge Devices. MobiCom 2024. doi:10.1145/3636534.3649363"
    )

    def supports(self, problem: Problem) -> str:
        """Any profiled fleet."""
        return not_profiled(problem)

    def plan(self, problem: Problem) -> PlanResult:
        """The plan of the method that was asked for."""
        options = wire.load(Options, problem.options, "strategy asteroid")
        names = taking_part(problem, options.devices)
        posed = problem_of(problem, names, layers=options.layers, warmup=options.warmup, snapshots=options.snapshots)
        if options.every_device and len(posed.problem.devices) < len(names):
            idle = set(names) - {device.name for device in posed.problem.devices}
            raise Infeasible(f"every_device: {min(idle)} lacks memory even for an idle worker; give it more")
        ask = _with_backups if options.backups else _solve
        solution = ask(posed, options, problem.seed)
        clock = Clock(problem.fleet, problem.profile)
        dense = plan_of(self.name, problem, posed, solution)
        plan = with_top_k(dense, clock, options.compression_ratio)
        bound_s = solution.lower_bound if plan is dense else None  # that of dense links is none of thin ones
        found = plan_result(plan, problem, clock, self.citation, bound_s=bound_s)
        return replace(found, method=options.method)


def _solve(posed: PosedProblem, options: Options, seed: int) -> Solution:
    """By the method; Infeasible also where a method that ignores memory found nothing that fits."""
    try:
        solution = solve(
            posed.problem,
            method=options.method,
            time_limit_s=options.time_limit_s,
            seed=seed,
            every_device=options.every_device,
            lost_s_per_byte=posed.lost_s_per_byte,
        )
    except Infeasible as error:
        raise Infeasible(f"{error} (budgets are memory less what an idle worker holds)") from None
    if not solution.feasible:
        raise Infeasible(f"method {options.method}: {solution.reason}; choose method search, which heeds memory")
    return solution


def _with_backups(posed: PosedProblem, options: Options, seed: int) -> Solution:
    """The first plan whose backups fit.

    What a backup needs depends on the plan, so none is allowed for at first; then the device that was to keep one and
    has no room for it holds that much back, and all is planned again.
    """
    held_bytes: dict[str, int] = {}
    for _ in range(TRIES):
        try:
            solution = _solve(with_reserves(posed, held_bytes), options, seed)
        except Infeasible as error:
            raise Infeasible(f"{error}{_told(held_bytes)}") from None
        lack = _lack_of_room(posed, solution)
        if lack is None:
            return solution
        held_bytes[lack.device] = lack.needed_bytes
    raise Infeasible(
        f"each of {TRIES} plans lacks room for a backup{_told(held_bytes)}; give these devices more memory or set "
        "strategy.options.backups=0"
    )


def _told(held_bytes: dict[str, int]) -> str:
    held = ", ".join(f"{format_bytes(size)} on {name}" for name, size in held_bytes.items())
    return f"; held back for backups: {held}" if held else ""


class Lack(NamedTuple):
    """A backup without a place: the roomiest device of the group that was to keep it."""

    device: str
    needed_bytes: int


def _lack_of_room(posed: PosedProblem, solution: Solution) -> Lack | None:
    """The first segment of one device whose state fits no device of the next; None where all fit.

    A plan of one segment has no other device: it has nothing to back up to.
    """
    room = {d.name: d.memory_bytes - solution.memory_bytes.get(d.name, 0) for d in posed.problem.devices}
    stages = solution.stages
    for stage, following in zip(stages, (*stages[1:], stages[0]), strict=True):
        needed = _backup_bytes(posed, *stage.layers)
        roomiest = max((device.name for device in following.devices), key=lambda name: room[name])
        if len(stages) > 1 and len(stage.devices) == 1 and needed > room[roomiest]:
            return Lack(roomiest, needed)
    return None


def _backup_bytes(posed: PosedProblem, first: int, end: int) -> int:
    """Trained weights and their optimizer state."""
    trained = sum(layer.trainable_bytes or 0 for layer in posed.problem.layers[first:end])
    return math.ceil(trained * (1 + posed.problem.optimizer_bytes_per_param_byte))
