"""fusionllm: a pipeline over clusters of fast links, thinned where links are slow.

After Tang et al., FusionLLM: A Decentralized LLM Training System on Geo-distributed GPUs with Adaptive Compression,
2024 (arXiv:2410.12707). The placement is `fleetune.solving.opfence`, which knows numbers only: `method: opfence` is the
paper's, `search` ours, which also searches over the order of clusters and leaves out devices that slow the round.
AdaTopK then gives every link a ratio by eq. (7).

Deviations: the profile's list of units is the graph (a cut carries all that crosses it), so segments are contiguous;
work is what was measured, forward and backward, not FLOPs over a fitted speed; memory is what the pipeline really
keeps.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import ClassVar

import numpy as np

from fleetune.checks.findings import over_memory
from fleetune.clock import Clock
from fleetune.clock.memory import segment_bytes
from fleetune.contracts import wire
from fleetune.contracts.link_spec import BYTES_PER_KEPT_ELEMENT, TOP_K
from fleetune.contracts.plan import Plan, PlanResult, Segment
from fleetune.contracts.record import positive, record
from fleetune.errors import Infeasible
from fleetune.planning.parts.chain_planner import ChainPlanner
from fleetune.planning.parts.layers import layer_edges
from fleetune.planning.parts.plan_result import plan_of, plan_result, segment
from fleetune.planning.parts.requirements import format_bytes, not_profiled, taking_part
from fleetune.planning.parts.top_k import check_ratio, with_top_k
from fleetune.planning.problem import Problem
from fleetune.solving.hpp.warmup import warmups
from fleetune.solving.opfence.problem import Device, Operator, Solution
from fleetune.solving.opfence.problem import Problem as Placing
from fleetune.solving.opfence.solve import solve

WORK = 1e12
"""Work of the whole model, in parts that every device does at its own speed: eleven digits of a unit's share."""
MOST_PARTS = 2**60
"""Of all memory that is needed: whole numbers stay where 64 bits hold them."""


@record
class Options:
    """Of `fusionllm`."""

    method: str = "search"
    """Of kind "opfence" (`fleetune solve --list`)."""
    devices: tuple[str, ...] = ()
    """Which ones may take part; all of the fleet where none are named."""
    layers: str | int = "units"
    """What may be cut apart: `units`, the model's own `blocks`, or a number of layers of about equal work."""
    warmup: str | tuple[int, ...] = "2(P-p)-1"
    """A policy of `solving.hpp.warmup`, or K of every segment, first to last."""
    compression_ratio: float | None = None
    """The slowest link sends about one of so many bytes; None: everything is sent dense."""
    time_limit_s: float | None = None
    """None: a fixed amount of work; else `search` goes on until then, and may answer differently from run to run."""

    def __post_init__(self) -> None:
        check_ratio("fusionllm", self.compression_ratio)
        if self.time_limit_s is not None:
            positive("fusionllm", time_limit_s=self.time_limit_s)


class FusionLLM:
    """Clusters of fast links, one connected part of the model each."""

    name = "fusionllm"
    options: ClassVar[type] = Options
    methods: ClassVar[dict[str, str]] = {"method": "opfence"}
    summary = "a pipeline that crosses slow links once, and thins what they carry (option compression_ratio)"
    citation = (
        "Tang, Z. et al.: FusionLLM: A Decentralized LLM Training System on Geo-distributed GPUs with Adaptive "
        "Compression. 2024. arXiv:2410.12707"
    )

    def supports(self, problem: Problem) -> str:
        """Any profiled fleet."""
        return not_profiled(problem)

    def plan(self, problem: Problem) -> PlanResult:
        """The placement as a chain of segments in the model's order, one device each."""
        options = wire.load(Options, problem.options, "strategy fusionllm")
        names = taking_part(problem, options.devices)
        clock = Clock(problem.fleet, problem.profile)
        edges = layer_edges(problem, options.layers, clock)
        most = max(options.warmup) if isinstance(options.warmup, tuple) else 2 * len(names) + 1
        posed = placing(problem, names, edges, kept=min(problem.micro_batches, most), ratio=options.compression_ratio)
        method = options.method
        plan = self._placed(problem, posed, edges, options)
        if plan is None:
            plan, method = _chained(self.name, problem, posed, edges, options), "chains"
        plan = with_top_k(plan, clock, options.compression_ratio)
        return replace(plan_result(plan, problem, clock, self.citation), method=method)

    def _placed(self, problem: Problem, posed: Placing, edges: list[int], options: Options) -> Plan | None:
        """The placement as a chain; None where memory leaves no placement, or one that comes back to a device."""
        try:
            solution = solve(posed, method=options.method, time_limit_s=options.time_limit_s, seed=problem.seed)
        except Infeasible:
            return None
        runs = _runs(solution, posed)
        if len({device for device, _ in runs}) < len(runs):
            return None
        plan = plan_of(self.name, problem, _segments(problem, runs, edges, options.warmup))
        for short in over_memory(plan, problem.fleet, problem.profile):
            raise Infeasible(f"method {options.method}: {short}; or choose method search, which heeds memory")
        return plan


def placing(problem: Problem, names: Sequence[str], edges: list[int], *, kept: int, ratio: float | None) -> Placing:
    """What the devices `names` could do, as a problem of kind "opfence".

    An operator is a layer between two `edges`. Its work is the mean over devices of its share of their measured time; a
    device's speed is the inverse of its whole time. Bytes go both ways, as a round's do; links count as the mean of
    their directions. The kind's memory is 2 · param_bytes + micro-batches · output_bytes: in a unit of bytes so small
    that param_bytes can be chosen to make this what a layer needs with `kept` micro-batches. Infeasible: no device can
    run even an idle worker.
    """
    fleet, samples, clock = problem.fleet, problem.micro_batch_samples, Clock(problem.fleet, problem.profile)
    room = {name: fleet.device(name).memory_bytes - problem.profile.times_of(name).runtime_bytes for name in names}
    able = [name for name in names if room[name] >= 0]
    if not able:
        best = max(names, key=lambda name: room[name])
        raise Infeasible(f"device {best} lacks {format_bytes(-room[best])} for an idle worker; give it more memory")
    seconds = np.array([np.sum(clock.unit_times(name, samples), axis=0) for name in able])
    layers = np.add.reduceat(seconds, edges[:-1], axis=1)
    whole = np.maximum(layers.sum(axis=1), 1e-12)
    shares = (layers / whole[:, None]).mean(axis=0)
    both = [[None if a == b else (fleet.link(a, b), fleet.link(b, a)) for b in able] for a in able]
    needed, sent = zip(*(_bytes(problem, first, end, kept) for first, end in pairwise(edges)), strict=True)
    parts = _parts(needed, sent, problem.micro_batches)
    return Placing(
        operators=tuple(
            Operator(
                name=problem.profile.units[end - 1].name,
                flops=round(share * WORK),
                param_bytes=max(0, math.ceil((parts * layer - problem.micro_batches * output) / 2)),
                output_bytes=output,
                inputs=(problem.profile.units[first - 1].name,) if first else (),
            )
            for share, layer, output, (first, end) in zip(shares.tolist(), needed, sent, pairwise(edges), strict=True)
        ),
        devices=tuple(
            Device(name=name, flops_per_s=WORK / whole_s, memory_bytes=parts * room[name])
            for name, whole_s in zip(able, whole.tolist(), strict=True)
        ),
        alpha_s=tuple(tuple(sum(x.latency_s for x in pair) if pair else None for pair in row) for row in both),
        beta_s_per_byte=tuple(
            tuple(sum(0.5 / x.bytes_per_s for x in pair) if pair else None for pair in row) for row in both
        ),
        micro_batches=problem.micro_batches,
        optimizer_bytes_per_param_byte=0.0,
        compression_ratio=ratio,
        codec_bytes_per_kept_element=None if ratio is None else BYTES_PER_KEPT_ELEMENT[TOP_K],
    )


def _bytes(problem: Problem, first: int, end: int, kept: int) -> tuple[int, int]:
    """What a layer needs on a device with so many micro-batches kept, and what it sends of each, both ways."""
    layer, samples = problem.profile.units[first:end], problem.micro_batch_samples
    state = 1 + problem.profile.optimizer_bytes_per_param_byte
    needed = segment_bytes(layer, trained=layer, state_per_param_byte=state, kept_samples=kept * samples)
    last = layer[-1] if end < len(problem.profile.units) else None
    return needed, 0 if last is None else (last.output_bytes + last.gradient_bytes) * samples


def _parts(needed: Sequence[int], sent: Sequence[int], micro_batches: int) -> int:
    """Into how many a byte of memory is divided, so that no layer needs fewer of them than it sends bytes."""
    most = max((micro_batches * output / layer for layer, output in zip(needed, sent, strict=True) if layer), default=1)
    return max(1, min(math.ceil(most), MOST_PARTS // max(1, sum(needed))))


def _chained(name: str, problem: Problem, posed: Placing, edges: list[int], options: Options) -> Plan:
    """The balanced chain of as many devices as it can be, the fastest ones; Infeasible: by all of them."""
    devices = sorted(posed.devices, key=lambda device: -device.flops_per_s)[: len(edges) - 1]
    shortage: Infeasible | None = None
    for count in range(len(devices), 0, -1):
        groups = tuple((device.name,) for device in devices[:count])
        if isinstance(options.warmup, tuple) and len(options.warmup) != count:
            continue
        try:
            return ChainPlanner(name, problem, groups, options.warmup, edges).best(keep_order=False)
        except Infeasible as error:
            shortage = shortage or error
    assert shortage is not None or isinstance(options.warmup, tuple)
    raise shortage or Infeasible(f"warmup: {list(options.warmup)} is for more segments than devices fit; list fewer")


def _runs(solution: Solution, posed: Placing) -> list[tuple[str, int]]:
    """(device, layers) along the chain."""
    found: list[tuple[str, int]] = []
    for operator in posed.operators:
        device = solution.placement[operator.name]
        if found and found[-1][0] == device:
            found[-1] = (device, found[-1][1] + 1)
        else:
            found.append((device, 1))
    return found


def _segments(
    problem: Problem, runs: list[tuple[str, int]], edges: list[int], policy: str | tuple[int, ...]
) -> list[Segment]:
    kept = warmups(policy, len(runs), problem.micro_batches)
    ends = np.cumsum([0, *(count for _, count in runs)]).tolist()
    return [
        segment(problem.profile.units[edges[i] : edges[j]], [(device, problem.micro_batch_samples)], k)
        for (device, _), (i, j), k in zip(runs, pairwise(ends), kept, strict=True)
    ]
