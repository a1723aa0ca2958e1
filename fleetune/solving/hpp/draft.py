"""Drafts: plans while they are searched for, and what they cost; and the averaged fleet, which makes drafts.

Costs are the exact round of the event simulation, peak memory, Asteroid's own estimate of a round (eq. (4)-(6), which
its planner minimises), and the bytes that cross between devices in a round (§2.3). Planners for homogeneous clusters
assume an averaged fleet: every device is the average device, every link the average link without latency, and times are
proportional to samples.
"""

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from fleetune.arrays import Floats
from fleetune.clock.costs import nanoseconds
from fleetune.clock.pipeline_arrays import FIRST, PipelineArrays, new_arrays
from fleetune.clock.pipeline_simulation import DEADLOCK, simulate
from fleetune.errors import Infeasible
from fleetune.solving.hpp.chain_cuts import run_edges
from fleetune.solving.hpp.instance import Instance, fastest_devices
from fleetune.solving.hpp.sample_allocation import even_shares


class DraftStage(NamedTuple):
    """Layers [first, end) on a group of devices (indices), each with its samples of every micro-batch."""

    first: int
    end: int
    devices: tuple[int, ...]
    samples: tuple[int, ...]


class Draft(NamedTuple):
    """Stages from the first layer to the last, and the warm-up K of each."""

    stages: tuple[DraftStage, ...]
    warmups: tuple[int, ...]


class MemoryShortfall(NamedTuple):
    """A device that exceeds its memory budget."""

    device: int
    stage: int
    missing_bytes: int


class DraftCost(NamedTuple):
    """Round and memory of a draft."""

    round_s: float
    """Seconds by the exact simulation; infinite where it deadlocks."""
    formula_round_s: float
    """Asteroid eq. (4)."""
    memory_bytes: tuple[tuple[int, ...], ...]
    """[stage][member]: peak bytes."""
    shortfall: MemoryShortfall | None
    """The device that exceeds its budget most; None where all fit."""


def single_stage_draft(instance: Instance, method: str, devices: Sequence[int], samples: Sequence[int]) -> Draft:
    """All layers as one stage on `devices`. Infeasible where warm-ups are listed for several stages."""
    listed = instance.problem.warmup
    if not isinstance(listed, str) and len(listed) != 1:
        raise Infeasible(
            f"warmup: {list(listed)} fixes {len(listed)} stages and {method} makes plans of one; list one K, name a "
            "policy or choose another method"
        )
    stage = DraftStage(0, instance.layers, tuple(devices), tuple(samples))
    return Draft((stage,), tuple(instance.warmups(1)))


def evaluate(instance: Instance, draft: Draft) -> DraftCost:
    """Simulate a round of the draft and compare peak memory with every device's budget."""
    round_ns = simulate(layout_of(instance, draft), {}).round_ns
    memory = tuple(
        tuple(peak_bytes(instance, stage, k, samples) for samples in stage.samples)
        for stage, k in zip(draft.stages, draft.warmups, strict=True)
    )
    shortfalls = [
        MemoryShortfall(device, p, peak - instance.problem.devices[device].memory_bytes)
        for p, stage in enumerate(draft.stages)
        for device, peak in zip(stage.devices, memory[p], strict=True)
    ]
    worst = max(shortfalls, key=lambda each: each.missing_bytes)
    return DraftCost(
        round_s=math.inf if round_ns == DEADLOCK else round_ns / 1e9,
        formula_round_s=formula_round_s(instance, draft.stages),
        memory_bytes=memory,
        shortfall=worst if worst.missing_bytes > 0 else None,
    )


def peak_bytes(instance: Instance, stage: DraftStage, warmup: int, samples: int) -> int:
    """Peak bytes of a member with `samples` samples: `LayerBytes.peak`."""
    kept_samples = min(warmup, instance.micro_batches) * samples
    return int(instance.bytes.peak(stage.first, stage.end, kept_samples, len(stage.devices)))


def layout_of(instance: Instance, draft: Draft) -> PipelineArrays:
    """The draft as input of the simulation; task times are sums over layers, rounded once to nanoseconds."""
    layout = new_arrays(sum(len(stage.devices) for stage in draft.stages), len(draft.stages), instance.arrays.link)
    layout.size[:] = len(draft.stages), instance.micro_batches
    at = 0
    for p, (first, end, devices, samples) in enumerate(draft.stages):
        trainable = instance.trainable_bytes[end] - instance.trainable_bytes[first]
        layout.stage[p] = at, draft.warmups[p], trainable, instance.output_bytes[end], instance.gradient_bytes[end]
        for device, many in zip(devices, samples, strict=True):
            seconds = instance.seconds(device, many, first, end)
            layout.member[at] = device, many, *map(nanoseconds, seconds)
            at += 1
    layout.stage[len(draft.stages), FIRST] = at
    return layout


class _Steps:
    """E_f, E_b (eq. (8)) and T_a (eq. (5), without latency) of alternating execution and communication steps."""

    def __init__(self, instance: Instance, stages: Sequence[DraftStage]) -> None:
        forward, backward, reduce = [], [], []
        for p, (first, end, devices, samples) in enumerate(stages):
            if p > 0:
                there, back = _crossing(instance, stages[p - 1][2], devices, first)
                forward.append(there)
                backward.append(back)
                reduce.append(0.0)
            tasks = [instance.seconds(d, y, first, end) for d, y in zip(devices, samples, strict=True)]
            forward.append(max(there for there, _ in tasks))
            backward.append(max(back for _, back in tasks))
            reduce.append(all_reduce_s(instance, devices, first, end))
        self.forward_s, self.backward_s = np.array(forward), np.array(backward)
        self.reduce_s: Floats = np.array(reduce)


def formula_round_s(instance: Instance, stages: Sequence[DraftStage]) -> float:
    """Seconds of a round by eq. (4): the largest T_w + T_e + T_a over all steps. The dominant step is the first with
    the largest M · (E_f + E_b) plus the E_f + E_b of the steps before it, eq. (11)."""
    steps = _Steps(instance, stages)
    both = steps.forward_s + steps.backward_s
    before = np.concatenate([[0.0], np.cumsum(both)[:-1]])
    dominant = int(np.argmax(instance.micro_batches * both + before))
    waiting = np.concatenate([[0.0], np.cumsum(steps.forward_s)[:-1]])
    executing = instance.micro_batches * both[dominant] + before[dominant] - before
    return float(np.max(waiting + executing + steps.reduce_s))


def all_reduce_s(instance: Instance, devices: tuple[int, ...], first: int, end: int) -> float:
    """T_a of eq. (5): 2(|G|-1) · w / (|G| · bandwidth of the slowest link inside the group)."""
    count = len(devices)
    if count == 1:
        return 0.0
    slowest = min(float(instance.bandwidth[a, b]) for a in devices for b in devices if a != b)
    return 2 * (count - 1) * float(instance.trainable_bytes[end] - instance.trainable_bytes[first]) / (count * slowest)


def _crossing(instance: Instance, low: tuple[int, ...], high: tuple[int, ...], edge: int) -> tuple[float, float]:
    """Seconds, forward and backward, of a micro-batch over the slowest link between two groups plus the largest
    latency."""
    result = []
    for senders, receivers, size in (
        (low, high, instance.output_bytes[edge]),
        (high, low, instance.gradient_bytes[edge]),
    ):
        slowest = min(float(instance.bandwidth[a, b]) for a in senders for b in receivers)
        latency_s = max(float(instance.latency_s[a, b]) for a in senders for b in receivers)
        result.append(instance.samples * float(size) / slowest + latency_s)
    return result[0], result[1]


def synchronous_bytes(instance: Instance, draft: Draft) -> int:
    """Bytes per round by eq. (2): 2 (|g| - 1) P_g of every stage's ring all-reduce, plus activations and gradients of M
    micro-batches across the cuts. P_g counts trainable bytes; gradients count with their own size (the paper uses
    a_j for both)."""
    reduced = sum(
        2 * (len(stage.devices) - 1) * int(instance.trainable_bytes[stage.end] - instance.trainable_bytes[stage.first])
        for stage in draft.stages
    )
    return reduced + _crossing_bytes(instance, draft, instance.micro_batches)


def hetpipe_bytes(instance: Instance, workers: Iterable[tuple[Draft, int]]) -> int:
    """Bytes per round by eq. (1): traffic across the cuts of G virtual workers, given with their micro-batches, plus
    2 G P for pushing and pulling the model where G > 1."""
    listed = list(workers)
    exchanged = 2 * len(listed) * int(instance.trainable_bytes[-1]) if len(listed) > 1 else 0
    return exchanged + sum(_crossing_bytes(instance, draft, micro_batches) for draft, micro_batches in listed)


def _crossing_bytes(instance: Instance, draft: Draft, micro_batches: int) -> int:
    cuts = [stage.first for stage in draft.stages[1:]]
    return (
        micro_batches
        * instance.samples
        * sum(int(instance.output_bytes[cut] + instance.gradient_bytes[cut]) for cut in cuts)
    )


class HomogeneousFleet:
    """Running sums of the average device and costs of cuts, at each edge of a chain of runs of layers.

    As many devices take part as can have the fewest samples that any layer needs in every stage; the slowest are left
    out. `stages` is the number of stages where the problem lists warm-ups, else None.
    """

    def __init__(self, instance: Instance, most_runs: int) -> None:
        self.instance = instance
        listed = instance.problem.warmup
        self.stages = None if isinstance(listed, str) else len(listed)
        self.group = instance.max_group
        """Largest number of devices of a stage."""
        self.devices = fastest_devices(instance, (self.stages or instance.layers) * self.group)
        count = self.count = len(self.devices)
        self.edges = run_edges(instance, max(most_runs, count))
        self.runs = len(self.edges) - 1
        links = instance.bandwidth[np.ix_(self.devices, self.devices)][~np.eye(count, dtype=bool)]
        self.bandwidth = float(np.mean(links)) if links.size else np.inf
        self.forward_s = np.mean(instance.forward_s[self.devices, -1], axis=0)[self.edges]
        """[edge]: seconds of a whole micro-batch."""
        self.backward_s = np.mean(instance.backward_s[self.devices, -1], axis=0)[self.edges]
        self.trainable_bytes = instance.trainable_bytes[self.edges].astype(np.float64)
        self.output_s = instance.samples * instance.output_bytes[self.edges] / self.bandwidth
        """[edge]: seconds of a whole micro-batch across a cut there."""
        self.gradient_s = instance.samples * instance.gradient_bytes[self.edges] / self.bandwidth

    def draft(self, cuts: list[int], sizes: list[int]) -> Draft:
        """Stages between `cuts` (indices into `edges`, both ends included) on the next `sizes` devices each, with even
        shares."""
        stages, taken = [], 0
        for first, end, size in zip(cuts[:-1], cuts[1:], sizes, strict=True):
            devices = tuple(self.devices[taken : taken + size])
            taken += size
            span = int(self.edges[first]), int(self.edges[end])
            stages.append(DraftStage(*span, devices, even_shares(self.instance.samples, size)))
        return Draft(tuple(stages), tuple(self.instance.warmups(len(stages))))
