"""A plan while it is being made, and what the exact simulation says of it."""

import math
from typing import NamedTuple

from fleetune.clock import Member, Pipeline, simulate
from fleetune.clock import Stage as ClockStage
from fleetune.clock.times import nanoseconds
from fleetune.solving.hpp.case import Case
from fleetune.solving.hpp.formula import formula_round_s


class Stage(NamedTuple):
    """Layers [first, end) on a group of devices (by number), each with its samples of every micro-batch."""

    first: int
    end: int
    devices: tuple[int, ...]
    samples: tuple[int, ...]


class Draft(NamedTuple):
    """Stages from the first layer to the last, and K of each."""

    stages: tuple[Stage, ...]
    warmups: tuple[int, ...]


class Lack(NamedTuple):
    """A device over its budget."""

    device: int
    stage: int
    missing_bytes: int


class Verdict(NamedTuple):
    """What a draft costs."""

    round_s: float
    """Of the exact simulation; infinite where it waits for ever."""
    formula_round_s: float
    """Asteroid eq. (4)."""
    memory_bytes: tuple[tuple[int, ...], ...]
    """[stage][place] peak."""
    lack: Lack | None
    """The worst device over its budget."""


def judge(case: Case, draft: Draft) -> Verdict:
    """The exact round of a draft, and whether every device has the memory."""
    played = simulate(pipeline_of(case, draft))
    memory = tuple(
        tuple(peak_bytes(case, stage, k, samples) for samples in stage.samples)
        for stage, k in zip(draft.stages, draft.warmups, strict=True)
    )
    lacks = [
        Lack(device, p, peak - case.problem.devices[device].memory_bytes)
        for p, stage in enumerate(draft.stages)
        for device, peak in zip(stage.devices, memory[p], strict=True)
    ]
    worst = max(lacks, key=lambda lack: lack.missing_bytes)
    return Verdict(
        round_s=math.inf if played.stuck else played.round_ns / 1e9,
        formula_round_s=formula_round_s(case, [(s.first, s.end, s.devices, s.samples) for s in draft.stages]),
        memory_bytes=memory,
        lack=worst if worst.missing_bytes > 0 else None,
    )


def peak_bytes(case: Case, stage: Stage, warmup: int, samples: int) -> int:
    """Asteroid eq. (3) in the contract's form, rounded up."""
    kept = min(warmup, case.micro_batches) * samples
    activations = int(case.activation_bytes[stage.end] - case.activation_bytes[stage.first])
    return case.state_bytes(stage.first, stage.end) + kept * activations


def pipeline_of(case: Case, draft: Draft) -> Pipeline:
    """The draft as the simulation takes it; times are sums over layers, each rounded once."""
    return Pipeline(
        stages=tuple(_stage(case, stage, k) for stage, k in zip(draft.stages, draft.warmups, strict=True)),
        micro_batches=case.micro_batches,
        bandwidth_bytes_per_s=tuple(tuple(row) for row in case.bandwidth.tolist()),
        latency_s=tuple(tuple(row) for row in case.latency_s.tolist()),
    )


def _stage(case: Case, stage: Stage, warmup: int) -> ClockStage:
    members = [_member(case, stage, *seat) for seat in zip(stage.devices, stage.samples, strict=True)]
    return ClockStage(
        members=tuple(members),
        warmup=warmup,
        trainable_bytes=int(case.trainable_bytes[stage.end] - case.trainable_bytes[stage.first]),
        output_bytes=int(case.output_bytes[stage.end]),
        gradient_bytes=int(case.gradient_bytes[stage.end]),
    )


def _member(case: Case, stage: Stage, device: int, samples: int) -> Member:
    forward_s, backward_s = case.seconds(device, samples, stage.first, stage.end)
    return Member(
        device=device,
        samples=samples,
        forward_ns=nanoseconds(forward_s),
        backward_ns=nanoseconds(backward_s),
    )
