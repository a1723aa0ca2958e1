"""lola-deft: every device hosts the frozen model and tunes one block of it; a server collects the gradients.

After Wu, Chen and Huang, Resource Management for Low-latency Cooperative Fine-tuning of Foundation Models at the
Network Edge, IEEE Transactions on Wireless Communications 2025 (arXiv:2407.09873). Who tunes which block, with which
part of the uplink's medium, is `fleetune.solving.deft`, which knows numbers only: `bisection` is the joint optimum,
`dual-ascent` and `crunch` are the paper's.

Deviations: times are measured, forward through the whole model and backward down to the block; a device's spectral
efficiency is its measured rate to the server with the whole medium to itself; latency counts; blocks are the model's
own, joined evenly where they outnumber devices, with trained units around them (embeddings, head) going with the
nearest. The clock also counts what the paper leaves out: the server's parameters on their way to the devices. Every
device trains on data of its own: training.batch_samples is each one's.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar

from fleetune.clock import Clock
from fleetune.contracts import wire
from fleetune.contracts.plan import Lane, LinkUse, Plan, PlanResult
from fleetune.contracts.profile import Unit
from fleetune.contracts.record import one_of, positive, record
from fleetune.errors import Infeasible, Refused
from fleetune.planning.parts.layers import block_of
from fleetune.planning.parts.plan_result import plan_result, segment
from fleetune.planning.parts.requirements import not_profiled, taking_part
from fleetune.planning.problem import Problem
from fleetune.solving.deft.kind import DEFT
from fleetune.solving.deft.problem import Problem as Dealing
from fleetune.solving.deft.problem import Solution
from fleetune.solving.deft.solve import solve


@record
class Options:
    """Of `lola-deft`."""

    method: str | None = None
    """Of kind "deft" (`fleetune solve --list`); the kind's default where none is named."""
    bandwidth: str = "joint"
    """`joint`: the parts of the medium are chosen with the blocks; `equal`: all alike."""
    server: str | None = None
    """Collects; the device that the others reach fastest where none is named. It tunes nothing."""
    devices: tuple[str, ...] = ()
    """Which ones may tune; all but the server where none are named."""
    blocks: int | None = None
    """How many; None: the model's own, or as many as there are devices where these are fewer."""

    def __post_init__(self) -> None:
        one_of("lola-deft", "bandwidth", self.bandwidth, ("joint", "equal"))
        if self.blocks is not None:
            positive("lola-deft", blocks=self.blocks)


class LolaDeft:
    """One block per device, gradients to a server."""

    name = "lola-deft"
    options: ClassVar[type] = Options
    methods: ClassVar[dict[str, str]] = {"method": "deft"}
    summary = "every device tunes one block of the whole frozen model; a server collects (LoRA; data stays where it is)"
    citation = (
        "Wu, H., Chen, X. and Huang, K.: Resource Management for Low-latency Cooperative Fine-tuning of Foundation "
        "Models at the Network Edge. IEEE Transactions on Wireless Communications, 2025. arXiv:2407.09873"
    )

    def supports(self, problem: Problem) -> str:
        """Any profiled fleet with a device beside the server, and a model of which something is trained."""
        if len(problem.fleet.devices) < 2:
            return "it needs a server and at least one device; the fleet has one device"
        if not any(unit.trainable_bytes for unit in problem.profile.units):
            return "no unit of the model is trained; add adapters (model.lora) or train some of it"
        return not_profiled(problem)

    def plan(self, problem: Problem) -> PlanResult:
        """A lane per block; all of them run beside each other."""
        options = wire.load(Options, problem.options, "strategy lola-deft")
        server, names = _roles(problem, options)
        clock = Clock(problem.fleet, problem.profile)
        blocks, posed, solution = _dealt(problem, clock, server, names, options)
        plan = _plan(problem, server, names, blocks, solution)
        least = min(_bytes(problem, block) for block in blocks)
        bound_s = _solved(replace(posed, block_bits=8.0 * least), Options(), problem.seed, names).lower_bound
        found = plan_result(
            plan, problem, clock, self.citation, bound_s=max(0.0, bound_s - 1e-8 * problem.micro_batches)
        )
        return replace(found, method=solution.method)


def _dealt(
    problem: Problem, clock: Clock, server: str, names: tuple[str, ...], options: Options
) -> tuple[list[tuple[int, int]], Dealing, Solution]:
    """Blocks, and who tunes them; where none were asked for, fewer of them as long as memory leaves too few devices."""
    most = _most_blocks(problem.profile.units, options.blocks, len(names))
    shortage: Infeasible | None = None
    for count in range(most, 0, -1) if options.blocks is None else (most,):
        blocks = _blocks(problem.profile.units, count)
        posed = _posed(problem, clock, server, names, blocks, options.bandwidth)
        try:
            return blocks, posed, _solved(posed, options, problem.seed, names)
        except Infeasible as error:
            shortage = shortage or error
    assert shortage is not None
    raise shortage


def _roles(problem: Problem, options: Options) -> tuple[str, tuple[str, ...]]:
    """The server and the devices that may tune."""
    names = taking_part(problem, options.devices)
    server = options.server
    if server is None:
        others = [d.name for d in problem.fleet.devices if d.name not in options.devices] or list(names)
        server = max(others, key=lambda name: (_room_bytes(problem, name) >= 0, _slowest_in(problem, name, names)))
    problem.fleet.device(server)
    if options.server is not None and server in options.devices:
        raise Refused(f"lola-deft: {server} is the server and one of the devices; the server tunes nothing")
    rest = tuple(name for name in names if name != server)
    if not rest:
        raise Refused(f"lola-deft: no device is left beside the server {server}; name at least one more")
    return server, rest


def _room_bytes(problem: Problem, server: str) -> float:
    """What is left of its memory beside the parameters that it collects; below 0 where it lacks some."""
    profile = problem.profile
    trained = sum(unit.trainable_bytes for unit in profile.units)
    held = profile.times_of(server).runtime_bytes + trained * (2 + profile.optimizer_bytes_per_param_byte)
    return problem.fleet.device(server).memory_bytes - held


def _slowest_in(problem: Problem, server: str, names: Sequence[str]) -> float:
    return min((problem.fleet.link(name, server).bytes_per_s for name in names if name != server), default=0.0)


def _most_blocks(units: Sequence[Unit], wanted: int | None, devices: int) -> int:
    """How many blocks there are to be; Refused: more than the model has; Infeasible: more than devices."""
    starts = _starts(units)
    count = min(len(starts), devices) if wanted is None else wanted
    if count > len(starts):
        raise Refused(f"lola-deft: blocks is {count}; the model has {len(starts)} that are trained; ask for fewer")
    if count > devices:
        raise Infeasible(f"lola-deft: {count} blocks need {count} devices beside the server, and there are {devices}")
    return count


def _starts(units: Sequence[Unit]) -> list[int]:
    """The first trained unit of each of the model's own blocks; each trained unit where it has none."""
    names = block_of([unit.name for unit in units])
    trained = [k for k, unit in enumerate(units) if unit.trainable_bytes]
    return sorted({names[k]: k for k in reversed(trained) if names[k]}.values()) or trained


def _blocks(units: Sequence[Unit], count: int) -> list[tuple[int, int]]:
    """[first, end) units of every block, block 0 nearest the output."""
    starts = _starts(units)
    lowest = next(k for k, unit in enumerate(units) if unit.trainable_bytes)
    edges = [lowest, *(starts[round(k * len(starts) / count)] for k in range(1, count)), len(units)]
    return [(a, b) for a, b in zip(edges, edges[1:], strict=False)][::-1]


def _posed(
    problem: Problem, clock: Clock, server: str, names: Sequence[str], blocks: list[tuple[int, int]], bandwidth: str
) -> Dealing:
    """Kind "deft": M passes of a device, forward through all and backward down to the block, then the upload."""
    samples, units = problem.micro_batch_samples, problem.profile.units
    compute_s = []
    for name in names:
        forward, backward = clock.unit_times(name, samples)
        latency_s = problem.fleet.link(name, server).latency_s
        compute_s.append(
            tuple(problem.micro_batches * (sum(forward) + sum(backward[first:])) + latency_s for first, _ in blocks)
        )
    weights = sum(unit.param_bytes + unit.buffer_bytes for unit in units)
    room = [problem.fleet.device(name).memory_bytes - problem.profile.times_of(name).runtime_bytes for name in names]
    return Dealing(
        bandwidth="joint" if bandwidth == "joint" else "equal",
        compute_s=tuple(compute_s),
        memory_bytes=tuple(float(max(0, size)) for size in room),
        block_memory_bytes=tuple(
            float(weights + _bytes(problem, block) + samples * _kept_bytes(units[_first(units, block) :]))
            for block in blocks
        ),
        block_bits=8.0 * max(_bytes(problem, block) for block in blocks),
        bandwidth_hz=1.0,
        spectral_efficiency=tuple(8.0 * problem.fleet.link(name, server).bytes_per_s for name in names),
    )


def _solved(posed: Dealing, options: Options, seed: int, names: Sequence[str]) -> Solution:
    """By the method; device numbers of errors are told by name."""
    assert DEFT.default is not None
    method = options.method or DEFT.default(posed)
    told = ", ".join(f"{index} {name}" for index, name in enumerate(names))
    try:
        solution = solve(posed, method=method, seed=seed)
    except Infeasible as error:
        raise Infeasible(
            f"{error}, or ask for fewer (strategy.options.blocks); budgets are memory less what an idle worker holds, "
            f"devices are {told}"
        ) from None
    if not solution.feasible:
        raise Infeasible(f"method {method}: {solution.reason} (devices are {told}); choose a method that heeds memory")
    return solution


def _plan(
    problem: Problem, server: str, names: Sequence[str], blocks: list[tuple[int, int]], solution: Solution
) -> Plan:
    units = problem.profile.units
    lanes, links = [], []
    for number, (first, end) in enumerate(blocks):
        device = names[solution.devices[number]]
        whole = segment(units, [(device, problem.micro_batch_samples)], warmup=1)
        trains = tuple(unit.name for unit in units[first:end] if unit.trainable_bytes)
        lanes.append(Lane(name=f"block-{number}", segments=(replace(whole, trains=trains),)))
        links.append(LinkUse(source=device, target=server, share=min(1.0, solution.bandwidth_hz[number])))
    return Plan(
        strategy=LolaDeft.name,
        micro_batch_samples=problem.micro_batch_samples,
        micro_batches=problem.micro_batches,
        lanes=tuple(lanes),
        links=tuple(links),
        collector=server,
    )


def _bytes(problem: Problem, block: tuple[int, int]) -> int:
    """What is trained of a block."""
    return sum(unit.trainable_bytes for unit in problem.profile.units[block[0] : block[1]])


def _kept_bytes(units: Sequence[Unit]) -> int:
    """Activations per sample."""
    return sum(unit.activation_bytes for unit in units)


def _first(units: Sequence[Unit], block: tuple[int, int]) -> int:
    """The first unit of a block that is trained: activations below it are not kept."""
    return next(k for k in range(*block) if units[k].trainable_bytes)
