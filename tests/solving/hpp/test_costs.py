"""Costs of plans against the contract, and the compiled evaluator against the simulation."""

import dataclasses
import math
from itertools import combinations, product

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from fleetune.clock.pipeline_simulation import simulate
from fleetune.errors import Infeasible
from fleetune.jit import compiled
from fleetune.solving.hpp.candidate import OUT_OF_MEMORY, WORST_SCORE, candidate_of, new_evaluator, score, to_draft
from fleetune.solving.hpp.draft import Draft, DraftStage, evaluate, hetpipe_bytes, layout_of, synchronous_bytes
from fleetune.solving.hpp.instance import Instance, InstanceArrays, Span
from fleetune.solving.hpp.methods import SUMMARIES
from fleetune.solving.hpp.problem import Problem
from fleetune.solving.hpp.sample_allocation import max_samples, state_bytes
from fleetune.solving.hpp.solve import solve
from tests.support.solving.hpp import reference
from tests.support.solving.hpp.instances import drawn, tiny
from tests.support.solving.hpp.problem_strategies import posed


@pytest.mark.parametrize("method", [method for method in SUMMARIES if method != "hetpipe"])
def test_a_plan_costs_what_the_contract_says(method: str) -> None:
    """Round, eq. (4) and peaks of all plans agree with an independent implementation; feasible means they fit."""
    for seed in range(12):
        problem = tiny(
            seed,
            layers=3 + seed % 4,
            devices=2 + seed % 3,
            samples=1 + seed % 6,
            micro_batches=1 + seed % 7,
            memory=(1.0, 0.6, 0.45)[seed % 3],
            link=(0.1, 1.0, 10.0)[seed // 3 % 3],
            snapshots=seed % 2,
            warmup=("2(P-p)-1", "P-p", "2(P-p)", "2(P-p)+1")[seed % 4],
        )
        try:
            plan = solve(problem, method=method)
        except Infeasible:
            assert method in ("asteroid", "search")
            continue
        reference.assert_plan(problem, plan.stages)
        assert plan.objective == pytest.approx(reference.round_s(problem, plan), abs=1e-12)
        assert plan.formula_round_s == pytest.approx(reference.formula_s(problem, plan.stages), rel=1e-9)
        assert plan.memory_bytes == {name: math.ceil(peak) for name, peak in reference.peaks(problem, plan).items()}
        assert plan.feasible == reference.fits(problem, plan)


@pytest.mark.parametrize("seed", range(8))
def test_half_nanoseconds_are_rounded_as_by_the_clock(seed: int) -> None:
    """Half nanoseconds, which interpolation yields, are rounded as the clock does by summing layer by layer."""
    plain = tiny(seed, layers=12, devices=4, samples=8)
    problem = dataclasses.replace(
        plain, forward_s=in_whole_ns(plain.forward_s), backward_s=in_whole_ns(plain.backward_s)
    )
    for method in ("asteroid", "dapple", "dp"):
        plan = solve(problem, method=method)
        assert plan.objective == pytest.approx(reference.round_s(problem, plan), abs=1e-12)


def in_whole_ns(rows: reference.Rows) -> reference.Rows:
    """Times as a clock that counts nanoseconds gives them."""
    return tuple(tuple(tuple(round(x, 9) for x in sizes) for sizes in row) for row in rows)


@settings(max_examples=300, deadline=None)
@given(posed(), st.sampled_from([0.0, 3e-7]))
def test_the_compiled_score_equals_the_simulation(given: tuple[Problem, Draft], lost_s_per_byte: float) -> None:
    """A candidate's score is the simulated round, or the missing bytes where memory is short; also where links cost
    their devices time."""
    (problem, draft), instance = given, Instance(given[0], (lost_s_per_byte,) * len(given[0].devices))
    found, cost = (
        int(score(instance.arrays, candidate_of(instance, draft), new_evaluator(instance), WORST_SCORE)),
        evaluate(instance, draft),
    )
    if cost.shortfall is None:
        assert found == simulate(layout_of(instance, draft), {}).round_ns == round(cost.round_s * 1e9)
        return
    lacking = sum(
        max(0, peak - problem.devices[device].memory_bytes)
        for stage, peaks in zip(draft.stages, cost.memory_bytes, strict=True)
        for device, peak in zip(stage.devices, peaks, strict=True)
    )
    assert found == OUT_OF_MEMORY + lacking


@settings(max_examples=300, deadline=None)
@given(posed())
def test_the_bound_refuses_no_better_candidate(given: tuple[Problem, Draft]) -> None:
    """A candidate below the limit is never refused by the bound, and one at the limit always is."""
    instance, evaluator = Instance(given[0]), new_evaluator(Instance(given[0]))
    candidate = candidate_of(instance, given[1])
    exact = int(score(instance.arrays, candidate, evaluator, WORST_SCORE))
    assert score(instance.arrays, candidate, evaluator, exact + 1) == exact
    assert score(instance.arrays, candidate, evaluator, exact) in (exact, WORST_SCORE)


@settings(max_examples=100, deadline=None)
@given(posed())
def test_a_score_does_not_depend_on_earlier_scores(given: tuple[Problem, Draft]) -> None:
    """A score does not depend on what the evaluator scored before."""
    instance, draft = Instance(given[0]), given[1]
    assume(len(draft.stages) > 1)
    used, first = new_evaluator(instance), draft.stages[0]
    whole = Draft((DraftStage(first.first, instance.layers, first.devices, first.samples),), draft.warmups[:1])
    alone = score(instance.arrays, candidate_of(instance, draft), new_evaluator(instance), WORST_SCORE)
    score(instance.arrays, candidate_of(instance, whole), used, WORST_SCORE)
    assert score(instance.arrays, candidate_of(instance, draft), used, WORST_SCORE) == alone


@settings(max_examples=100, deadline=None)
@given(posed())
def test_a_candidate_converts_back_to_its_draft(given: tuple[Problem, Draft]) -> None:
    """Converting a draft to a candidate and back loses nothing."""
    assert to_draft(candidate_of(Instance(given[0]), given[1])) == given[1]


INSTANCE = Instance(drawn())


def pipeline(*devices: int) -> Draft:
    """One layer a device, what remains on the last."""
    ends = [*range(1, len(devices)), 3]
    stages = [DraftStage(k, ends[k], (device,), (2,)) for k, device in enumerate(devices)]
    return Draft(tuple(stages), (1,) * len(stages))


def test_one_device_sends_nothing() -> None:
    """Where everything is on one device, no byte crosses."""
    assert synchronous_bytes(INSTANCE, pipeline(2)) == 0


def test_all_reduce() -> None:
    """Data parallelism on three devices moves 2 (3 - 1) times the 3000 bytes of weights (eq. (2), G = 1)."""
    whole = Draft((DraftStage(0, 3, (0, 1, 2), (1, 1, 1)),), (1,))
    assert synchronous_bytes(INSTANCE, whole) == 12_000


def test_stages() -> None:
    """Two devices reduce two layers (2 * 2000 B); 5 micro-batches of 2 samples cross once each way (10 * 200 B)."""
    draft = Draft((DraftStage(0, 2, (0, 1), (1, 1)), DraftStage(2, 3, (2,), (2,))), (3, 1))
    assert synchronous_bytes(INSTANCE, draft) == 4000 + 2000


def test_frozen_weights_stay() -> None:
    """Only what is trained is reduced."""
    adapters = tuple(dataclasses.replace(layer, trainable_bytes=10) for layer in drawn().layers)
    frozen = Instance(drawn(layers=adapters))
    assert synchronous_bytes(frozen, Draft((DraftStage(0, 3, (0, 1), (1, 1)),), (1,))) == 2 * 3 * 10


def test_one_virtual_worker_needs_no_server() -> None:
    """Eq. (1), G = 1: only cuts count, here two of 200 B for each of 10 samples."""
    assert hetpipe_bytes(INSTANCE, [(pipeline(0, 1, 2), 5)]) == 2 * 200 * 10


def test_virtual_workers_exchange_the_model() -> None:
    """Eq. (1), G = 2: both push and pull 3000 B; the pipeline of two sends 3 micro-batches across its cut."""
    assert hetpipe_bytes(INSTANCE, [(pipeline(0, 1), 3), (pipeline(2), 2)]) == 2 * 2 * 3000 + 3 * 2 * 200


@compiled
def compiled_bytes(arrays: InstanceArrays, device: int, layers: Span, kept: int, members: int) -> tuple[int, int]:
    """Call the compiled copies."""
    first, end = layers
    return state_bytes(arrays, first, end, members), max_samples(arrays, device, first, end, kept, members)


@pytest.mark.parametrize("seed", range(12))
def test_the_compiled_memory_model_is_the_one_of_the_planners(seed: int) -> None:
    """For every run, device, K and size of the group the compiled copies give what `LayerBytes` gives for all runs at
    once, and a share one larger than the largest does not fit."""
    problem = tiny(seed, samples=1 + seed % 5, memory=(1.0, 0.5, 0.2)[seed % 3], snapshots=seed % 2)
    instance = Instance(problem, received_per_byte=seed % 3)
    edges = np.arange(instance.layers + 1)
    low, high = edges[:, None], edges[None, :]
    for device, memory in enumerate(instance.memory_bytes.tolist()):
        for kept, members in product((1, 2, 4), (1, 2, 3)):
            most = instance.bytes.max_samples(low, high, memory, kept, instance.samples, members)
            for first, end in combinations(edges.tolist(), 2):
                state, samples = compiled_bytes(instance.arrays, device, Span(first, end), kept, members)
                assert (state, samples) == (instance.bytes.state(first, end, members), most[first, end])
                if samples < instance.samples:
                    assert instance.bytes.peak(first, end, kept * (samples + 1), members) > memory
                if samples > 0:
                    assert instance.bytes.peak(first, end, kept * samples, members) <= memory
