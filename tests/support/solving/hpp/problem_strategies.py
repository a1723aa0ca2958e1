"""Hypothesis strategies for unusual problems and arbitrary plans, and the check that a draft is a plan."""

import dataclasses
from itertools import combinations
from typing import Any

from hypothesis import strategies as st

from fleetune.solving.hpp.draft import Draft, DraftStage
from fleetune.solving.hpp.instance import Instance
from fleetune.solving.hpp.problem import Problem
from tests.support.solving.hpp.instances import tiny


def proven(instance: Instance, draft: Draft, micro_batch: int) -> set[int]:
    """Assert that a draft is a plan; its devices."""
    assert [stage.first for stage in draft.stages] == [0, *(stage.end for stage in draft.stages[:-1])]
    assert draft.stages[-1].end == instance.layers
    assert all(stage.first < stage.end for stage in draft.stages)
    for stage in draft.stages:
        assert len(stage.devices) == len(stage.samples)
        assert min(stage.samples) >= 1
        assert sum(stage.samples) == micro_batch
    devices = [device for stage in draft.stages for device in stage.devices]
    assert len(set(devices)) == len(devices)
    assert set(devices) <= set(range(instance.devices))
    assert list(draft.warmups) == instance.warmups(len(draft.stages))
    return set(devices)


def cuttings(layers: int, stages: int) -> list[tuple[int, ...]]:
    """All places to cut, both ends among them."""
    return [(0, *inner, layers) for inner in combinations(range(1, layers), stages - 1)]


@st.composite
def problems(draw: st.DrawFn) -> Problem:
    """Odd shapes: few or many layers, devices, samples; layers that cost nothing; devices that are all the same."""
    shape = {name: draw(st.integers(1, 6)) for name in ("layers", "devices", "samples")}
    listed = draw(st.integers(1, min(shape["layers"], shape["devices"])))
    problem = tiny(
        draw(st.integers(0, 99)),
        **shape,
        link=draw(st.sampled_from([0.01, 1.0, 100.0])),
        micro_batches=draw(st.integers(1, 5)),
        warmup=draw(st.sampled_from(["2(P-p)-1", "P-p", "free", tuple(range(2 * listed, listed, -1))])),
    )
    free = draw(st.sets(st.integers(0, shape["layers"] - 1)))
    alike = draw(st.booleans())
    return dataclasses.replace(
        problem,
        forward_s=_changed(problem.forward_s, free, alike),
        backward_s=_changed(problem.backward_s, free, alike),
    )


def _changed(seconds: tuple[Any, ...], free: set[int], alike: bool) -> tuple[Any, ...]:
    rows = [seconds[0]] * len(seconds) if alike else seconds
    return tuple(
        tuple(tuple(0.0 for _ in times) if layer in free else times for layer, times in enumerate(row)) for row in rows
    )


@st.composite
def posed(draw: st.DrawFn) -> tuple[Problem, Draft]:
    """An odd problem and any plan of it: memory is not looked at, K falls or stays the same from stage to stage."""
    problem = draw(problems())
    return problem, draw(drafts(Instance(problem)))


@st.composite
def drafts(draw: st.DrawFn, instance: Instance) -> Draft:
    """Any plan of the instance."""
    stages = draw(st.integers(1, instance.max_stages))
    edges = [0, *sorted(draw(_some(range(1, instance.layers), stages - 1))), instance.layers]
    order = draw(st.permutations(range(instance.devices)))
    used = draw(st.integers(stages, min(instance.devices, stages * instance.samples)))
    sizes = [1] * stages
    for _ in range(used - stages):
        room = [p for p in range(stages) if sizes[p] < instance.samples]
        sizes[draw(st.sampled_from(room))] += 1
    made, at = [], 0
    for p, count in enumerate(sizes):
        cuts = [0, *sorted(draw(_some(range(1, instance.samples), count - 1))), instance.samples]
        shares = tuple(b - a for a, b in zip(cuts, cuts[1:], strict=False))
        made.append(DraftStage(edges[p], edges[p + 1], tuple(order[at : at + count]), shares))
        at += count
    kept = sorted(draw(st.lists(st.integers(1, 9), min_size=stages, max_size=stages)), reverse=True)
    return Draft(tuple(made), tuple(kept))


def _some(choices: range, count: int) -> st.SearchStrategy[set[int]]:
    if count == 0:
        return st.just(set())
    return st.sets(st.sampled_from(choices), min_size=count, max_size=count)
