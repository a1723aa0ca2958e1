"""Planners for homogeneous clusters find the best layout by their own measure."""

import dataclasses
from collections.abc import Iterator
from itertools import product
from typing import Any

import numpy as np
import pytest

from fleetune.solving.hpp.draft import Draft, DraftStage
from fleetune.solving.hpp.instance import Instance
from fleetune.solving.hpp.methods import dapple, pipedream
from tests.support.solving.hpp.instances import drawn, tiny
from tests.support.solving.hpp.problem_strategies import cuttings

SEEDS = range(6)


def layouts(layers: int, devices: int) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
    """All cuts with all numbers of devices per stage that use every device."""
    for stages in range(1, min(layers, devices) + 1):
        for sizes in product(range(1, devices + 1), repeat=stages):
            if sum(sizes) == devices:
                yield from ((cuts, sizes) for cuts in cuttings(layers, stages))


class Average:
    """The average device and link of an instance, computed directly."""

    def __init__(self, instance: Instance) -> None:
        self.instance, devices = instance, range(instance.devices)
        links = [instance.bandwidth[a, b] for a in devices for b in devices if a != b]
        self.bandwidth = float(sum(links)) / len(links)

    def times(self, first: int, end: int) -> tuple[float, float]:
        """Forward and backward of a micro-batch."""
        rows = [self.instance.seconds(d, self.instance.samples, first, end) for d in range(self.instance.devices)]
        return sum(row[0] for row in rows) / len(rows), sum(row[1] for row in rows) / len(rows)

    def weights_s(self, first: int, end: int) -> float:
        """All trained weights across a link once."""
        return float(self.instance.trainable_bytes[end] - self.instance.trainable_bytes[first]) / self.bandwidth

    def cut_s(self, edge: int) -> tuple[float, float]:
        """Activations and gradients of a micro-batch across a link."""
        per_byte = self.instance.samples / self.bandwidth
        return float(self.instance.output_bytes[edge]) * per_byte, float(self.instance.gradient_bytes[edge]) * per_byte


def read(draft: Draft) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Cuts, and devices of every stage."""
    return (0, *(stage.end for stage in draft.stages)), tuple(len(stage.devices) for stage in draft.stages)


def slowest_stage_s(average: Average, cuts: tuple[int, ...], sizes: tuple[int, ...]) -> float:
    """PipeDream's measure of a plan, weights exchanged once a round."""
    stages = [
        max(sum(average.times(*cuts[p : p + 2])), 2 * (m - 1) * average.weights_s(*cuts[p : p + 2]) / rounds) / m
        for rounds in [average.instance.micro_batches]
        for p, m in enumerate(sizes)
    ]
    return max(stages + [sum(average.cut_s(cut)) for cut in cuts[1:-1]])


def pipeline_s(average: Average, cuts: tuple[int, ...], sizes: tuple[int, ...]) -> float:
    """DAPPLE's L = T_w + T_s + T_e, computed from its definition."""
    steps: list[tuple[float, float, float]] = []
    for p, m in enumerate(sizes):
        if p > 0:
            steps.append((*average.cut_s(cuts[p]), 0.0))
        forward_s, backward_s = average.times(*cuts[p : p + 2])
        steps.append((forward_s / m, backward_s / m, 2 * (m - 1) / m * average.weights_s(*cuts[p : p + 2])))
    more, pivot = average.instance.micro_batches - 1, len(steps) - 1
    for s in reversed(range(len(steps) - 1)):
        between = sum(f + b for f, b, _ in steps[s + 1 : pivot])
        if more * sum(steps[s][:2]) > more * sum(steps[pivot][:2]) + between:
            pivot = s
    ends = [
        reduce_s + (sum(b for _, b, _ in steps[s : pivot + 1]) if s <= pivot else -sum(b for _, b, _ in late))
        for s, (_, _, reduce_s) in enumerate(steps)
        for late in [steps[pivot + 1 : s]]
    ]
    return sum(f for f, _, _ in steps[: pivot + 1]) + more * sum(steps[pivot][:2]) + max(ends)


@pytest.mark.parametrize(("method", "measure"), [(pipedream, slowest_stage_s), (dapple, pipeline_s)], ids=["P", "D"])
@pytest.mark.parametrize("link", [0.02, 0.3, 5.0])
@pytest.mark.parametrize("seed", SEEDS)
def test_no_layout_is_better(seed: int, link: float, method: Any, measure: Any) -> None:
    """Of all cuts and replications of 4 layers on 3 devices, the plan is best by the planner's own measure; in every
    other instance the later layers have the weights."""
    problem = tiny(seed, layers=4, devices=3, samples=4, link=link)
    heavy = tuple(
        dataclasses.replace(x, param_bytes=4**k * 9000, trainable_bytes=None) for k, x in enumerate(problem.layers)
    )
    instance = Instance(dataclasses.replace(problem, layers=heavy) if seed % 2 else problem)
    average = Average(instance)
    best = min(measure(average, *layout) for layout in layouts(4, 3))
    assert measure(average, *read(method.plan(instance))) == pytest.approx(best, rel=1e-12)


@pytest.mark.parametrize(("method", "measure"), [(pipedream, slowest_stage_s), (dapple, pipeline_s)], ids=["P", "D"])
@pytest.mark.parametrize("seed", SEEDS)
def test_no_layout_of_listed_stages_is_better(seed: int, method: Any, measure: Any) -> None:
    """Where three stages are listed, the plan is best of those with three, on devices in the order given."""
    instance = Instance(tiny(seed, layers=5, devices=4, samples=3, warmup=(5, 3, 1)))
    average = Average(instance)
    draft = method.plan(instance)
    best = min(measure(average, *layout) for layout in layouts(5, 4) if len(layout[1]) == 3)
    assert measure(average, *read(draft)) == pytest.approx(best, rel=1e-12)
    assert [device for stage in draft.stages for device in stage.devices] == [0, 1, 2, 3]


@pytest.mark.parametrize("link", [0.02, 0.3, 5.0])
@pytest.mark.parametrize("seed", SEEDS)
def test_dapple_estimates_what_it_says(seed: int, link: float) -> None:
    """The L by which a plan was chosen is T_w + T_s + T_e of that plan, all-reduces of late stages included."""
    problem = tiny(seed, layers=8, devices=6, samples=6, link=link)
    heavy = tuple(
        dataclasses.replace(layer, param_bytes=3**k * 900, trainable_bytes=None, gradient_bytes=4 * layer.output_bytes)
        for k, layer in enumerate(problem.layers)
    )
    for instance in (Instance(problem), Instance(dataclasses.replace(problem, layers=heavy, warmup=(9, 7, 5, 3)))):
        draft, latency_s = dapple.estimated(instance)
        assert latency_s == pytest.approx(pipeline_s(Average(instance), *read(draft)), rel=1e-12)


@pytest.mark.parametrize("method", [pipedream, dapple], ids=["pipedream", "dapple"])
def test_uneven_devices_share_evenly(method: Any) -> None:
    """On fast links and with light weights the cluster is one group; 7 samples on 3 devices are 3, 2, 2."""
    links = tuple(tuple(None if a == b else 1e9 for b in range(3)) for a in range(3))
    draft = method.plan(Instance(drawn(micro_batch=7, bandwidth_bytes_per_s=links)))
    assert draft.stages == (DraftStage(0, 3, (0, 1, 2), (3, 2, 2)),)


@pytest.mark.parametrize("method", [pipedream, dapple], ids=["pipedream", "dapple"])
def test_no_group_has_more_devices_than_samples(method: Any) -> None:
    """One sample: three stages of one device each, and five devices on two layers leave the three slowest out."""
    assert [stage.samples for stage in method.plan(Instance(drawn(micro_batch=1))).stages] == [(1,)] * 3
    instance = Instance(tiny(3, layers=2, devices=5, samples=1))
    fast = np.argsort(instance.forward_s[:, 1, -1] + instance.backward_s[:, 1, -1])[:2]
    assert {device for stage in method.plan(instance).stages for device in stage.devices} == set(fast.tolist())
