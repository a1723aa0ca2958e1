"""Times a block with half of its heads full beside the whole block: what gates cost beyond the share of work left.

Narrower products, the gathering of weights and a second group of heads take time that is in no proportion to heads
(in Table IV of D2FT, 0.6 of the micro-batches take 0.72 of the time). Whole and gated passes take turns, so that a
device that changes its speed changes all of them.
"""

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch

from fleetune.contracts.plan import FORWARD_ONLY, FULL, SKIP
from fleetune.contracts.profile import GateExtra, GateTimes
from fleetune.contracts.subnet import SubnetPart
from fleetune.models.attention_heads import AttentionHead
from fleetune.models.graph import Graph
from fleetune.models.segment import SegmentRunner, Values
from fleetune.profiling.timing import TimingSettings, Window, backwards, forwards
from fleetune.profiling.unit_bytes import detached_inputs

OPERATIONS = FULL + SKIP + FORWARD_ONLY
"""What every other head does in the three micro-batches that are timed; the first is the whole block."""
Load = Callable[[list[str], Mapping[str, str]], dict[str, SegmentRunner]]
"""Loads units by name, each as a segment with these gates."""


class PassTimes(NamedTuple):
    """Seconds of a unit, or of several."""

    forward: float
    backward: float


class LeftShares(NamedTuple):
    """Shares of a unit's work that the gates of one micro-batch leave."""

    forward: float
    backward: float


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadedBlock:
    """A transformer block among the units of a model."""

    graph: Graph
    heads: tuple[AttentionHead, ...]
    """Its heads, in order."""
    parts: Mapping[str, tuple[SubnetPart, ...]]
    """Name of a head -> its parts of units."""

    @property
    def gates(self) -> dict[str, str]:
        """Gates of every head for the three micro-batches: every second one changes its operation."""
        return {
            head.name: OPERATIONS if number % 2 else FULL * len(OPERATIONS) for number, head in enumerate(self.heads)
        }

    @property
    def units(self) -> list[str]:
        """Names of the units from the first to the last that heads own parts of."""
        names = [unit.name for unit in self.graph.units]
        places = sorted(names.index(part.unit) for head in self.heads for part in self.parts[head.name])
        return names[places[0] : places[-1] + 1]

    def shares(self, micro_batch: int) -> dict[str, LeftShares]:
        """Return what the gates leave of every unit in one of the three micro-batches."""
        skipped = dict.fromkeys(self.units, 0.0)
        unlearned = dict(skipped)
        for head in self.heads:
            operation = self.gates[head.name][micro_batch]
            for part in self.parts[head.name]:
                skipped[part.unit] += part.share * (operation == SKIP)
                unlearned[part.unit] += part.share * (operation != FULL)
        return {unit: LeftShares(1 - skipped[unit], 1 - unlearned[unit]) for unit in self.units}


def gate_times(block: HeadedBlock, load: Load, inputs: Values, size: int, settings: TimingSettings) -> GateTimes:
    """Measure a block; inputs: the graph's, for `size` samples."""
    given = _values_before(block, load, inputs, size, settings)
    segments = load(block.units, block.gates)
    window = Window(graph=block.graph, segments=[segments[unit] for unit in block.units], given=given, size=size)
    turns = [
        [_unit_times(window, settings, number) for number in range(len(OPERATIONS))] for _ in range(settings.passes + 1)
    ]  # the first warms caches up
    skipped, forward_only = (
        extra(block.units, [(whole, gated[number]) for whole, *gated in turns[1:]], block.shares(number + 1))
        for number in range(2)
    )
    return GateTimes(skipped=skipped, forward_only=forward_only)


def extra(
    units: Sequence[str], turns: Sequence[tuple[list[PassTimes], list[PassTimes]]], left: Mapping[str, LeftShares]
) -> GateExtra:
    """Return the median over turns of what a gated pass takes beyond the shares that are left.

    turns: times of every unit in a whole pass and in a gated one. left: shares by unit.
    """

    def beyond(whole: list[PassTimes], gated: list[PassTimes], way: int) -> float:
        expected_s = sum(times[way] * left[unit][way] for unit, times in zip(units, whole, strict=True))
        whole_s = sum(times[way] for times in whole)
        return (sum(times[way] for times in gated) - expected_s) / whole_s if whole_s > 0 else 0.0

    forward, backward = (statistics.median(beyond(*turn, way) for turn in turns) for way in range(2))
    return GateExtra(forward=forward, backward=backward)


def _unit_times(window: Window, settings: TimingSettings, micro_batch: int) -> list[PassTimes]:
    forward: list[list[float]] = [[] for _ in window.segments]
    backward: list[list[float]] = [[] for _ in window.segments]
    _, done = forwards(replace(window, micro_batch=micro_batch), settings, forward)
    backwards(window.segments, done, settings, backward)
    return [PassTimes(*times) for times in zip(map(sum, forward), map(sum, backward), strict=True)]


def _values_before(block: HeadedBlock, load: Load, inputs: Values, size: int, settings: TimingSettings) -> Values:
    """Run the units before the block, one in memory at a time; return the values that reach the block."""
    held = dict(inputs)
    for unit in block.graph.units:
        if unit.name == block.units[0]:
            break
        (segment,) = load([unit.name], {}).values()
        with torch.no_grad():
            held = dict(segment.run(detached_inputs(block.graph, segment, held), size, settings.draws(size)))
    return held
