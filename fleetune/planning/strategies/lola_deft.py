"""lola-deft: every device hosts the frozen model and tunes one block of it; a server collects the gradients.

After Wu, Chen and Huang, Resource Management for Low-latency Cooperative Fine-tuning of Foundation Models at the
Network Edge, IEEE Transactions on Wireless Communications 2025 (arXiv:2407.09873). `fleetune.solving.lola_deft` assigns
blocks to devices and divides the uplink's bandwidth: `bisection` is the joint optimum, `dual-ascent` and `crunch` are
the paper's.

Deviations: times are measured, forward through the whole model and backward down to the block; the spectral efficiency
of a device is its measured rate to the server when alone; link latency counts; blocks are the model's own, joined
evenly if there are more of them than devices, and trained units around them (embeddings, head) belong to the nearest
block. The clock also counts the broadcast of parameters from the server, which the paper leaves out. Every device
trains on its own batches, of training.batch_samples samples each: of data of its own, or of pieces of common batches.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import ClassVar, NamedTuple

from fleetune.checks.findings import over_memory
from fleetune.clock import Clock
from fleetune.contracts import json_io
from fleetune.contracts.plan import Lane, LinkUse, Plan, PlanResult
from fleetune.contracts.profile import Unit
from fleetune.contracts.record import not_negative, one_of, positive, record
from fleetune.errors import Infeasible, Refused
from fleetune.planning import papers
from fleetune.planning.plan_result import plan_result, segment
from fleetune.planning.strategy import Problem, free_bytes, participants, unprofiled_reason
from fleetune.program.blocks import block_of
from fleetune.solving.lola_deft import DEFT
from fleetune.solving.lola_deft.problem import Problem as DeftProblem
from fleetune.solving.lola_deft.problem import Solution
from fleetune.solving.lola_deft.solve import solve

LEAST_SERVERS = 2
"""Servers that are tried at least, where none is named."""
SERVERS_BY_DEVICES = 256
"""Servers that are tried, times the devices of the fleet: all of up to 16, which takes a second at most."""


@record
class Options:
    """Options of `lola-deft`."""

    method: str | None = None
    """Method of kind "deft" (`fleetune solve --list`); None: the kind's default."""
    bandwidth: str = "joint"
    """`joint`: shares of the bandwidth are optimised with the assignment; `equal`: all shares are equal."""
    server: str | None = None
    """Device that collects the gradients and tunes nothing; None: the one with which memory permits most blocks, and
    among these the one with the shortest round."""
    devices: tuple[str, ...] = ()
    """Names of the devices that may tune a block; empty: those of data.local, else all; never the server."""
    blocks: int | None = None
    """Number of blocks; None: the model's own, but at most one per device."""
    replan_every_rounds: int = 0
    """Rounds after which training may deal the blocks anew among their devices, from measured times; 0: never."""

    def __post_init__(self) -> None:
        one_of("lola-deft", "bandwidth", self.bandwidth, ("joint", "equal"))
        if self.blocks is not None:
            positive("lola-deft", blocks=self.blocks)
        not_negative("lola-deft", replan_every_rounds=self.replan_every_rounds)


class LolaDeft:
    """Assigns one block to each device; a server collects the gradients."""

    name = "lola-deft"
    options: ClassVar[type] = Options
    methods: ClassVar[dict[str, str]] = {"method": "deft"}
    summary = "every device tunes one block of the whole frozen model; a server collects (LoRA)"
    citation = papers.LOLA_DEFT

    def unsupported_reason(self, problem: Problem) -> str:
        """Names a lack of devices, of trained units or of measured times."""
        if len(problem.fleet.devices) < 2:
            return "it needs a server and at least one device; the fleet has one device"
        if not any(unit.trainable_bytes for unit in problem.profile.units):
            return "no unit of the model is trained; add adapters (model.lora) or train some of it"
        return unprofiled_reason(problem)

    def plan(self, problem: Problem) -> PlanResult:
        """A lane per block; lanes run concurrently."""
        options = json_io.load(Options, problem.options, "strategy lola-deft")
        clock = Clock(problem.fleet, problem.profile)
        found = _with_best_server(problem, clock, _all_roles(problem, clock, options), options)
        plan = replace(found.plan, replan_every_rounds=options.replan_every_rounds)
        return replace(
            plan_result(plan, problem, clock, self.citation, bound_s=found.bound_s),
            method=found.assignment.solution.method,
        )

    def revise(self, problem: Problem, plan: Plan, lost: Collection[str]) -> PlanResult:
        """The devices that are left get the model's blocks, joined to so many, by the same assignment, and keep their
        lanes' samples. Another device becomes the server if that was lost, and if it has a lane, that ends.
        """
        options = replace(
            json_io.load(Options, problem.options, "strategy lola-deft"),
            server=None if plan.collector in lost else plan.collector,
            devices=(),
            blocks=None,
        )
        lanes = {lane.segments[0].devices[0]: lane for lane in plan.lanes}
        clock = Clock(problem.fleet, problem.profile)
        everyone = _all_roles(problem, clock, options)
        with_lanes = [Roles(server, tuple(name for name in devices if name in lanes)) for server, devices in everyone]
        if not any(roles.devices for roles in with_lanes):
            raise Infeasible(f"lola-deft: no device with a block is left beside the server {everyone[0].server}")
        left = [roles for roles in with_lanes if roles.devices]
        made = _with_best_server(problem, clock, left, options).plan
        named = tuple(replace(lane, name=lanes[lane.segments[0].devices[0]].name) for lane in made.lanes)
        made = replace(made, lanes=named, replan_every_rounds=plan.replan_every_rounds)
        return plan_result(made, problem, clock, self.citation, bound_s=0.0)


class Roles(NamedTuple):
    """The collecting server, and the devices that may tune a block."""

    server: str
    devices: tuple[str, ...]


class Block(NamedTuple):
    """Units [first, end) of the model."""

    first: int
    end: int


class Assignment(NamedTuple):
    """Blocks (block 0 nearest the output), the problem of kind "deft" for them, and its solution."""

    blocks: list[Block]
    instance: DeftProblem
    solution: Solution


def _assign(problem: Problem, clock: Clock, roles: Roles, options: Options) -> Assignment:
    """Solve with the requested number of blocks, else with as many as the devices' memory permits."""
    most = _most_blocks(problem.profile.units, options.blocks, len(roles.devices))
    shortage: Infeasible | None = None
    for count in range(most, 0, -1) if options.blocks is None else (most,):
        blocks = _blocks(problem.profile.units, count)
        instance = _instance(problem, clock, roles, blocks, options.bandwidth)
        try:
            return Assignment(blocks, instance, _solve(instance, options, problem.seed, roles.devices))
        except Infeasible as error:
            shortage = shortage or error
    assert shortage is not None
    raise shortage


class Served(NamedTuple):
    """The plan with a server, and a lower bound in seconds of the round for all servers that it was chosen among."""

    assignment: Assignment
    plan: Plan
    bound_s: float


def _with_best_server(problem: Problem, clock: Clock, candidates: Sequence[Roles], options: Options) -> Served:
    """The plan with the most blocks, then the shortest round, then the first name of a server.

    candidates: the likeliest first. Of many the first ones are tried, as each takes a solution of its own, and on until
    one has a plan. Infeasible as the first of them, where none has.
    """
    most = max(LEAST_SERVERS, SERVERS_BY_DEVICES // len(problem.fleet.devices))
    found: list[Served] = []
    shortage: Infeasible | None = None
    untried_s = math.inf
    for number, roles in enumerate(candidates):
        if number >= most and found:
            untried_s = _bound_of_any_server_s(problem, clock, candidates)
            break
        try:
            found.append(_served(problem, clock, roles, options))
        except Infeasible as error:
            shortage = shortage or error
    if not found:
        assert shortage is not None, "there is a candidate"
        raise shortage
    best = min(found, key=lambda one: (-len(one.plan.lanes), clock.round_s(one.plan), one.plan.collector or ""))
    return best._replace(bound_s=min(untried_s, *(one.bound_s for one in found)))


def _served(problem: Problem, clock: Clock, roles: Roles, options: Options) -> Served:
    """The plan with this server, and its bound. Infeasible: the devices or the server lack memory."""
    assignment = _assign(problem, clock, roles, options)
    plan = _plan(problem, roles, assignment)
    for short in over_memory(plan, problem.fleet, problem.profile):
        raise Infeasible(f"lola-deft: {short}")
    smallest = replace(assignment.instance, block_bits=8.0 * min(_bytes(problem, b) for b in assignment.blocks))
    bound_s = _solve(smallest, Options(), problem.seed, roles.devices).lower_bound
    return Served(assignment, plan, max(0.0, bound_s - 1e-8 * problem.micro_batches))


def _bound_of_any_server_s(problem: Problem, clock: Clock, candidates: Sequence[Roles]) -> float:
    """Lower bound in seconds for any server: the deepest block's passes on the fastest device, without any link."""
    devices = {name for roles in candidates for name in roles.devices}
    return max(0.0, min(_passes_s(problem, clock, name) for name in devices) - 1e-8 * problem.micro_batches)


def _passes_s(problem: Problem, clock: Clock, device: str) -> float:
    """Seconds of a round's forwards through the whole model and backwards down to its first trained unit."""
    lowest = next(k for k, unit in enumerate(problem.profile.units) if unit.trainable_bytes)
    return problem.micro_batches * _lane_s(problem, clock, device, {lowest})


def _lane_s(problem: Problem, clock: Clock, device: str, trained: Collection[int]) -> float:
    """Seconds of a micro-batch's forward through the whole model and backward down to the lowest of the units that are
    trained, given by their positions.
    """
    samples, places = problem.micro_batch_samples, range(len(problem.profile.units))
    return sum(map(sum, clock.segment_times(device, samples, places, trained)))


def _all_roles(problem: Problem, clock: Clock, options: Options) -> list[Roles]:
    """The requested server, else all that may be it, the likeliest first, each with the devices beside it."""
    wanted = options.devices or problem.owners
    names = participants(problem, wanted)
    if options.server is not None:
        problem.fleet.device(options.server)
        if options.server in options.devices:
            raise Refused(f"lola-deft: {options.server} is the server and one of the devices; the server tunes nothing")
        return [_beside(options.server, names)]
    beside = {*wanted, *problem.owners}  # an owner would receive what all others train
    servers = [d.name for d in problem.fleet.devices if d.name not in beside] or list(names)
    passes_s = {name: _passes_s(problem, clock, name) for name in names}
    made = [_beside(server, names) for server in servers]
    return sorted(made, key=lambda roles: (_estimate_s(problem, roles, passes_s, options), roles.server))


def _beside(server: str, names: Sequence[str]) -> Roles:
    rest = tuple(sorted(name for name in names if name != server))  # so that the fleet's order decides no tie
    if not rest:
        raise Refused(f"lola-deft: no device is left beside the server {server}; name at least one more")
    return Roles(server, rest)


def _estimate_s(problem: Problem, roles: Roles, passes_s: Mapping[str, float], options: Options) -> float:
    """About the round with a server, in seconds: the last of as many devices as there may be blocks, the fastest first,
    each sending its block as if alone. Infinite: too few devices have memory for the weights."""
    units, fleet = problem.profile.units, problem.fleet
    count = options.blocks or min(len(_starts(units)), len(roles.devices))
    weights = problem.profile.weight_bytes(unit.name for unit in units)
    sent = sum(unit.trainable_bytes for unit in units) / count
    each_s = [math.inf] * count
    for name in roles.devices:
        link = fleet.link(name, roles.server)
        if free_bytes(problem, name) >= weights:
            each_s.append(passes_s[name] + link.latency_s + sent / link.bytes_per_s)
    return sorted(each_s)[count - 1]


def _most_blocks(units: Sequence[Unit], wanted: int | None, devices: int) -> int:
    """Maximum number of blocks. Refused: more than the model has are requested; Infeasible: more than devices."""
    starts = _starts(units)
    count = min(len(starts), devices) if wanted is None else wanted
    if count > len(starts):
        raise Refused(f"lola-deft: blocks is {count}; the model has {len(starts)} that are trained; ask for fewer")
    if count > devices:
        raise Infeasible(f"lola-deft: {count} blocks need {count} devices beside the server, and there are {devices}")
    return count


def _starts(units: Sequence[Unit]) -> list[int]:
    """Position of the first trained unit of each of the model's own blocks; of each trained unit if it has none."""
    names = block_of([unit.name for unit in units])
    trained = [k for k, unit in enumerate(units) if unit.trainable_bytes]
    return sorted({names[k]: k for k in reversed(trained) if names[k]}.values()) or trained


def _blocks(units: Sequence[Unit], count: int) -> list[Block]:
    """The model's own blocks joined to `count`, block 0 nearest the output."""
    starts = _starts(units)
    lowest = next(k for k, unit in enumerate(units) if unit.trainable_bytes)
    edges = [lowest, *(starts[round(k * len(starts) / count)] for k in range(1, count)), len(units)]
    return [Block(first, end) for first, end in pairwise(edges)][::-1]


def _instance(problem: Problem, clock: Clock, roles: Roles, blocks: list[Block], bandwidth: str) -> DeftProblem:
    """The problem of kind "deft": every device runs M forward passes through the whole model and backward passes down
    to its block, then uploads its gradients."""
    samples, units, fleet = problem.micro_batch_samples, problem.profile.units, problem.fleet
    trained = [_trained_places(units, block) for block in blocks]
    compute_s = []
    for name in roles.devices:
        latency_s = fleet.link(name, roles.server).latency_s
        compute_s.append(
            tuple(problem.micro_batches * _lane_s(problem, clock, name, places) + latency_s for places in trained)
        )
    weights = problem.profile.weight_bytes(unit.name for unit in units)
    handed = problem.profile.trainable_bytes(unit.name for unit in units)
    return DeftProblem(
        bandwidth="joint" if bandwidth == "joint" else "equal",
        compute_s=tuple(compute_s),
        memory_bytes=tuple(float(max(0, free_bytes(problem, name))) for name in roles.devices),
        block_memory_bytes=tuple(
            float(
                weights
                + max(
                    handed,  # all that anybody trains, before a round's passes
                    _bytes(problem, block) + samples * _activation_bytes(units[_first_trained(units, block) :]),
                )
            )
            for block in blocks
        ),
        block_bits=8.0 * max(_bytes(problem, block) for block in blocks),
        bandwidth_hz=1.0,
        spectral_efficiency=tuple(8.0 * fleet.link(name, roles.server).bytes_per_s for name in roles.devices),
    )


def _solve(instance: DeftProblem, options: Options, seed: int, names: Sequence[str]) -> Solution:
    """Solve by the requested method; errors list the devices' names beside their numbers."""
    assert DEFT.default is not None
    method = options.method or DEFT.default(instance)
    listed = ", ".join(f"{index} {name}" for index, name in enumerate(names))
    try:
        solution = solve(instance, method=method, seed=seed)
    except Infeasible as error:
        raise Infeasible(
            f"{error}; or name other devices or another server (strategy.options.devices, server), or lower "
            f"training.micro_batch_samples; budgets are memory less what an idle worker holds, devices are {listed}"
        ) from None
    if not solution.feasible:
        raise Infeasible(
            f"method {method}: {solution.reason} (devices are {listed}); choose a method that respects memory"
        )
    return solution


def _trained_places(units: Sequence[Unit], block: Block) -> frozenset[int]:
    """Positions of the units that the lane of a block trains: its own, but for one that shares a weight with a lower
    block. That belongs to the lower block, whose backward passes all uses of the weight.
    """
    names = [frozenset(unit.tied) for unit in units]

    def lowest(k: int) -> int:
        return min(j for j in range(k + 1) if j == k or names[j] & names[k]) if names[k] else k

    return frozenset(k for k, unit in enumerate(units) if unit.trainable_bytes and block.first <= lowest(k) < block.end)


def _trained_names(units: Sequence[Unit], block: Block) -> tuple[str, ...]:
    """Names of the units that the lane of a block trains. Refused: a block that has none of its own."""
    found = tuple(units[k].name for k in sorted(_trained_places(units, block)))
    if not found:
        shared = ", ".join(units[k].name for k in range(block.first, block.end) if units[k].trainable_bytes)
        raise Refused(
            f"lola-deft: a block of {shared} alone shares its weight with a lower block; ask for fewer blocks "
            "(strategy.options.blocks)"
        )
    return found


def _plan(problem: Problem, roles: Roles, assignment: Assignment) -> Plan:
    units, solution = problem.profile.units, assignment.solution
    lanes, links = [], []
    for number, block in enumerate(assignment.blocks):
        device = roles.devices[solution.devices[number]]
        whole = segment(units, [(device, problem.micro_batch_samples)], warmup=1)
        trains = _trained_names(units, block)
        lanes.append(Lane(name=f"block-{number}", segments=(replace(whole, trains=trains),)))
        links.append(LinkUse(source=device, target=roles.server, share=min(1.0, solution.bandwidth_hz[number])))
    return Plan(
        strategy=LolaDeft.name,
        micro_batch_samples=problem.micro_batch_samples,
        micro_batches=problem.micro_batches,
        lanes=tuple(lanes),
        links=tuple(links),
        collector=roles.server,
    )


def _bytes(problem: Problem, block: Block) -> int:
    """Bytes of what the lane of a block trains, and sends."""
    units = problem.profile.units
    return problem.profile.trainable_bytes(units[k].name for k in _trained_places(units, block))


def _activation_bytes(units: Sequence[Unit]) -> int:
    """Activation bytes per sample."""
    return sum(unit.activation_bytes for unit in units)


def _first_trained(units: Sequence[Unit], block: Block) -> int:
    """Position of the first trained unit of a block; activations below it are not kept."""
    return next(k for k in range(*block) if units[k].trainable_bytes)
