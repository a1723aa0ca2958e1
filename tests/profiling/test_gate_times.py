"""Timing of a block of which half of the heads are full."""

from pathlib import Path
from typing import Any

import pytest

from fleetune.contracts.profile import GateExtra
from fleetune.models.attention_heads import attention_heads, find_blocks
from fleetune.models.gates import gate_segment
from fleetune.models.segment import SegmentRunner
from fleetune.models.skeleton import skeleton
from fleetune.models.source import configuration
from fleetune.profiling.gate_times import HeadedBlock, LeftShares, PassTimes, extra, gate_times
from fleetune.profiling.subnet_parts import SubnetParts
from fleetune.profiling.timing import TimingSettings
from tests.support.models.instances import Recorded, batch, recorded
from tests.support.profiling.watched import Watched
from tests.support.training.model_families import BY_NAME

FAMILY = BY_NAME["bert"]


def test_what_exceeds_the_share_is_extra() -> None:
    """Of units of 10 and 4 s forward and 20 and 8 s backward a half and all is left, 9 and 18 s: passes of 16 and 25 s
    take 7 of 14 and 7 of 28 s more. One turn that something disturbed does not count."""
    whole = [PassTimes(10.0, 20.0), PassTimes(4.0, 8.0)]
    left = {"a": LeftShares(0.5, 0.5), "b": LeftShares(1.0, 1.0)}
    gated = [PassTimes(9.0, 15.0), PassTimes(7.0, 10.0)]
    late = [PassTimes(90.0, 150.0), PassTimes(7.0, 10.0)]
    assert extra(["a", "b"], [(whole, gated), (whole, late), (whole, gated)], left) == GateExtra(
        forward=0.5, backward=0.25
    )


def test_frozen_blocks_cost_nothing_backward() -> None:
    """A block without a backward has no time that an extra could be a part of."""
    turn = ([PassTimes(2.0, 0.0)], [PassTimes(1.5, 0.0)])
    assert extra(["a"], [turn], {"a": LeftShares(0.5, 0.5)}) == GateExtra(forward=0.25, backward=0.0)


def block_of(ready: Recorded) -> HeadedBlock:
    """The first block of a model."""
    config = configuration(ready.request, ready.labels)
    whole = skeleton(config, ready.request)
    found = attention_heads(find_blocks(ready.graph, whole, config))
    heads = tuple(head for head in found if head.block == found[0].block)
    parts = SubnetParts(ready.graph, whole)
    return HeadedBlock(graph=ready.graph, heads=heads, parts={head.name: parts.of(head) for head in heads})


@pytest.mark.parametrize("granularity", ["block", "layer"])
def test_the_gated_passes_are_those_of_a_worker(granularity: str, tmp_path: Path) -> None:
    """Each turn runs the whole block, then with half of its heads skipped, then with half forward only, on what the
    units before it made; of the heads' part of the work, half is left."""
    ready = recorded(FAMILY, tmp_path, granularity=granularity)
    block = block_of(ready)
    config = configuration(ready.request, ready.labels)
    seen: list[tuple[int, str]] = []

    def watched(unit: str, segment: SegmentRunner) -> Watched:
        return Watched(segment, lambda values, size, draws: seen.append((draws.micro_batch, unit)))

    def load(units: list[str], gates: Any) -> dict[str, Any]:
        made = {unit: ready.segment((unit,)) for unit in units}
        for segment in made.values():
            if gates:
                gate_segment(segment, gates, skeleton(config, ready.request), config)
            segment.train()
        return {unit: watched(unit, segment) for unit, segment in made.items()} if gates else made

    rows = batch(FAMILY, 3)
    inputs = {number: rows[name] for name, number in ready.graph.inputs.items()}
    found = gate_times(block, load, inputs, 3, TimingSettings(batch_sizes=(3,), passes=2, cores=1.0))
    assert seen == [(number, unit) for _ in range(3) for number in range(3) for unit in block.units]
    assert found.skipped.forward > -1 and found.forward_only.forward > -1
    half, learning = block.shares(1), block.shares(2)
    for unit in block.units:
        owned = sum(part.share for parts in block.parts.values() for part in parts if part.unit == unit)
        assert half[unit] == pytest.approx((1 - owned / 2, 1 - owned / 2))
        assert learning[unit] == pytest.approx((1.0, 1 - owned / 2))
