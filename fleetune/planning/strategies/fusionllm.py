"""fusionllm: a pipeline over clusters of fast links, compressed where links are slow.

After Tang et al., FusionLLM: A Decentralized LLM Training System on Geo-distributed GPUs with Adaptive Compression,
2024 (arXiv:2410.12707). `fleetune.solving.opfence` finds the placement: `method: opfence` is the paper's; `search` is
ours, also searches the order of clusters, and leaves out devices that slow the round. With `compression_ratio`, AdaTopK
then sets the compression ratio of every link by eq. (7), where that makes its messages faster; with `compression`, the
forecast chooses each link's codec.

Deviations: the graph is the profile's list of units (a cut carries all tensors that cross it), so segments are
contiguous; work is the measured time, forward and backward, not FLOPs over a fitted speed; memory is that of the actual
pipeline schedule.
"""

import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import pairwise
from typing import ClassVar

import numpy as np

from fleetune.checks.findings import over_memory
from fleetune.clock import Clock
from fleetune.clock.costs import segment_bytes
from fleetune.contracts import json_io
from fleetune.contracts.plan import Plan, PlanResult, Segment
from fleetune.contracts.record import positive, record
from fleetune.errors import Infeasible, Refused
from fleetune.planning import papers
from fleetune.planning.chain_planner import ChainPlanner
from fleetune.planning.compression import byte_shares, check_compression, check_ratio, compressed, kept_element_bytes
from fleetune.planning.layers import layer_edges
from fleetune.planning.plan_result import plan_result, segment, single_lane_plan
from fleetune.planning.strategy import Problem, devices_with_room, participants, unprofiled_reason
from fleetune.solving.hpp.problem import warmups
from fleetune.solving.limits import Deadline
from fleetune.solving.opfence.problem import Device, Operator, Solution
from fleetune.solving.opfence.problem import Problem as PlacementProblem
from fleetune.solving.opfence.solve import solve

WORK = 1e12
"""Work of the whole model in abstract FLOPs; large, so that rounding a layer's share keeps eleven digits."""
MAX_SCALED_BYTES = 2**60
"""Upper limit of scaled memory sizes, within 64-bit integers."""


@record
class Options:
    """Options of `fusionllm`."""

    method: str = "search"
    """Method of kind "opfence" (`fleetune solve --list`)."""
    devices: tuple[str, ...] = ()
    """Names of the devices that may be used; empty: the whole fleet."""
    layers: str | int = "units"
    """Granularity of cuts: `units`, the model's own `blocks`, or a number of layers of about equal work."""
    warmup: str | tuple[int, ...] = "2(P-p)-1"
    """A warm-up policy of kind "hpp", or K of every segment, first to last, which fixes their number."""
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
    """Compression of the slowest link, which sends about one byte in so many (lossy); None: dense."""
    time_limit_s: float | None = None
    """Seconds that `search` may take, with plans that may differ between runs; None: a fixed amount of work."""

    def __post_init__(self) -> None:
        check_ratio("fusionllm", self.compression_ratio)
        check_compression("fusionllm", self)
        if self.warmup == ():
            raise Refused("fusionllm: warmup lists no segment; give one number for each, or the name of a policy")
        if self.time_limit_s is not None:
            positive("fusionllm", time_limit_s=self.time_limit_s)


class FusionLLM:
    """Places one connected part of the model on each cluster of fast links."""

    name = "fusionllm"
    options: ClassVar[type] = Options
    methods: ClassVar[dict[str, str]] = {"method": "opfence"}
    summary = (
        "a pipeline that crosses slow links once, and thins what they carry (options compression, compression_ratio)"
    )
    citation = papers.FUSIONLLM

    def unsupported_reason(self, problem: Problem) -> str:
        """Names a device without measured times."""
        return unprofiled_reason(problem)

    def plan(self, problem: Problem) -> PlanResult:
        """A chain of segments in the model's order, one device each."""
        options = json_io.load(Options, problem.options, "strategy fusionllm")
        names = participants(problem, options.devices)
        clock = Clock(problem.fleet, problem.profile)
        edges = layer_edges(problem, options.layers, clock)
        most = max(options.warmup) if isinstance(options.warmup, tuple) else 2 * len(names) + 1
        placement = placement_problem(
            problem, names, edges, kept=min(problem.micro_batches, most), ratio=options.compression_ratio
        )
        found = []
        deadline = Deadline(options.time_limit_s)
        shares = byte_shares(options)
        for place, share in enumerate(shares):
            limited = replace(options, time_limit_s=deadline.part(1 / (len(shares) - place)).rest_s)
            method, plan = options.method, self._placed(problem, _with_bytes(placement, share), edges, limited)
            if plan is None:
                plan, method = _balanced_chain(self.name, problem, placement, edges, options), "chains"
            found.append((compressed(plan, clock, options), method))
        found += [(plan, "one device") for plan in _on_one_device(self.name, problem, placement, edges, options)]
        plan, method = min(found, key=lambda one: clock.round_s(one[0])) if len(found) > 1 else found[0]
        return replace(plan_result(plan, problem, clock, self.citation), method=method)

    def _placed(self, problem: Problem, placement: PlacementProblem, edges: list[int], options: Options) -> Plan | None:
        """The placement as a chain; None if memory permits none, if a device has two separate runs of layers, or if
        warm-ups are listed for another number of segments."""
        try:
            solution = solve(placement, method=options.method, time_limit_s=options.time_limit_s, seed=problem.seed)
        except Infeasible:
            return None
        runs = _device_runs(solution, placement)
        if len({device for device, _ in runs}) < len(runs):
            return None
        if isinstance(options.warmup, tuple) and len(options.warmup) != len(runs):
            return None
        plan = single_lane_plan(self.name, problem, _segments(problem, runs, edges, options.warmup))
        for short in over_memory(plan, problem.fleet, problem.profile):
            raise Infeasible(f"method {options.method}: {short}; or choose method search, which respects memory")
        return plan


def placement_problem(
    problem: Problem, names: Sequence[str], edges: list[int], *, kept: int, ratio: float | None
) -> PlacementProblem:
    """The problem of kind "opfence" for the devices `names`.

    An operator is a layer between two `edges`. Its work is the mean over devices of its share of their measured time; a
    device's speed is the inverse of its time for the whole model. Bytes count forward and backward; links are the mean
    of both directions. The kind's memory is 2 · param_bytes + micro-batches · output_bytes. Memory is scaled so that
    param_bytes >= 0 can make this equal to the need of a layer with `kept` micro-batches. Infeasible: no device has
    memory for an idle worker.
    """
    fleet, samples, clock = problem.fleet, problem.micro_batch_samples, Clock(problem.fleet, problem.profile)
    room = devices_with_room(problem, names)
    seconds = np.array([np.sum(clock.unit_times(name, samples), axis=0) for name in room])
    layers = np.add.reduceat(seconds, edges[:-1], axis=1)
    whole = np.maximum(layers.sum(axis=1), 1e-12)
    shares = (layers / whole[:, None]).mean(axis=0)
    both = [[None if a == b else (fleet.link(a, b), fleet.link(b, a)) for b in room] for a in room]
    needed, sent = zip(*(_layer_bytes(problem, first, end, kept) for first, end in pairwise(edges)), strict=True)
    scale = _memory_scale(needed, sent, problem.micro_batches)
    return PlacementProblem(
        operators=tuple(
            Operator(
                name=problem.profile.units[end - 1].name,
                flops=round(share * WORK),
                param_bytes=max(0, math.ceil((scale * layer - problem.micro_batches * output) / 2)),
                output_bytes=output,
                inputs=(problem.profile.units[first - 1].name,) if first else (),
            )
            for share, layer, output, (first, end) in zip(shares.tolist(), needed, sent, pairwise(edges), strict=True)
        ),
        devices=tuple(
            Device(name=name, flops_per_s=WORK / whole_s, memory_bytes=scale * room[name])
            for name, whole_s in zip(room, whole.tolist(), strict=True)
        ),
        alpha_s=tuple(tuple(sum(x.latency_s for x in pair) if pair else None for pair in row) for row in both),
        beta_s_per_byte=tuple(
            tuple(sum(0.5 / x.bytes_per_s for x in pair) if pair else None for pair in row) for row in both
        ),
        micro_batches=problem.micro_batches,
        optimizer_bytes_per_param_byte=0.0,
        compression_ratio=ratio,
        element_bytes=problem.profile.element_bytes,
        codec_bytes_per_kept_element=None
        if ratio is None
        else kept_element_bytes(ratio, problem.profile.element_bytes),
    )


def _with_bytes(placement: PlacementProblem, share: float) -> PlacementProblem:
    """The problem with links that carry this share of all bytes."""
    if share == 1.0:
        return placement
    beta = tuple(tuple(None if x is None else x * share for x in row) for row in placement.beta_s_per_byte)
    return replace(placement, beta_s_per_byte=beta)


def _layer_bytes(problem: Problem, first: int, end: int, kept: int) -> tuple[int, int]:
    """Memory of a layer with `kept` micro-batches, and bytes sent per micro-batch, forward and backward."""
    layer, samples = problem.profile.units[first:end], problem.micro_batch_samples
    state = 1 + problem.profile.optimizer_bytes_per_param_byte
    needed = segment_bytes(layer, trained=layer, state_per_param_byte=state, kept_samples=kept * samples)
    last = layer[-1] if end < len(problem.profile.units) else None
    return needed, 0 if last is None else (last.output_bytes + last.gradient_bytes) * samples


def _memory_scale(needed: Sequence[int], sent: Sequence[int], micro_batches: int) -> int:
    """Factor on all memory sizes, so that no layer needs fewer scaled bytes than it sends."""
    largest = max(
        (micro_batches * output / layer for layer, output in zip(needed, sent, strict=True) if layer), default=1
    )
    return max(1, min(math.ceil(largest), MAX_SCALED_BYTES // max(1, sum(needed))))


def _balanced_chain(
    name: str, problem: Problem, placement: PlacementProblem, edges: list[int], options: Options
) -> Plan:
    """The balanced chain of the fastest devices, as many as possible, else of those with most memory, else one device;
    where warm-ups are listed, as many as these. Infeasible: no number of devices has a chain."""
    fastest = sorted(placement.devices, key=lambda device: -device.flops_per_s)
    roomiest = sorted(placement.devices, key=lambda device: -device.memory_bytes)
    most = min(len(fastest), len(edges) - 1)
    if isinstance(options.warmup, tuple):
        listed = len(options.warmup)
        if listed > most:
            raise Infeasible(f"warmup: {list(options.warmup)} is for more segments than devices fit; list fewer")
        chosen = [fastest[:listed], roomiest[:listed]]
    else:
        counts = range(most, 0, -1)
        chosen = [*(fastest[:count] for count in counts), *(roomiest[:count] for count in counts)]
        chosen += [[device] for device in fastest]
    shortage: Infeasible | None = None
    for devices in chosen:
        groups = tuple((device.name,) for device in devices)
        try:
            return ChainPlanner(name, problem, groups, options.warmup, edges).best(keep_order=False)
        except Infeasible as error:
            shortage = shortage or error
    assert shortage is not None, "there is a device"
    raise shortage


def _on_one_device(
    name: str, problem: Problem, placement: PlacementProblem, edges: list[int], options: Options
) -> list[Plan]:
    """The plan of the fastest device that has memory for the whole model, where segments that share weights would
    each hold them, and sum their gradients: the placement knows nothing of this, and the clock, which does, chooses."""
    searches = options.method == "search" and not isinstance(options.warmup, tuple)
    for device in sorted(placement.devices, key=lambda device: -device.flops_per_s):
        if not (searches and problem.profile.shares_weights):
            break
        with suppress(Infeasible):
            return [ChainPlanner(name, problem, ((device.name,),), options.warmup, edges).best(keep_order=False)]
    return []


def _device_runs(solution: Solution, placement: PlacementProblem) -> list[tuple[str, int]]:
    """(device, number of layers) of every run of layers along the model."""
    found: list[tuple[str, int]] = []
    for operator in placement.operators:
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
