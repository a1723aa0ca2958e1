"""What a plan is said to cost, against the contract's words; and the planner's fast judge against the slow one."""

import dataclasses
import math

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from fleetune.clock import simulate
from fleetune.errors import Infeasible
from fleetune.solving.hpp.candidate import OUT_OF_MEMORY, WORST_SCORE, candidate_of, new_evaluator, score, to_draft
from fleetune.solving.hpp.draft import Draft, evaluate, pipeline_of
from fleetune.solving.hpp.instance import Instance
from fleetune.solving.hpp.methods import SUMMARIES
from fleetune.solving.hpp.problem import Problem
from fleetune.solving.hpp.solve import solve
from tests.solving.hpp import contract
from tests.solving.hpp.draft_strategies import posed
from tests.solving.hpp.instances import tiny


@pytest.mark.parametrize("method", [method for method in SUMMARIES if method != "hetpipe"])
def test_a_plan_costs_what_the_contract_says(method: str) -> None:
    """Round, eq. (4) and peaks of every method's plans are those of the second opinion; feasible means they fit."""
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
        contract.assert_plan(problem, plan.stages)
        assert plan.objective == pytest.approx(contract.round_s(problem, plan), abs=1e-12)
        assert plan.formula_round_s == pytest.approx(contract.formula_s(problem, plan.stages), rel=1e-9)
        assert plan.memory_bytes == {name: math.ceil(peak) for name, peak in contract.peaks(problem, plan).items()}
        assert plan.feasible == contract.fits(problem, plan)


@pytest.mark.parametrize("seed", range(8))
def test_half_nanoseconds_round_alike(seed: int) -> None:
    """Times in whole nanoseconds have halves between the sizes measured: plans of 12 layers still cost to the
    nanosecond what summing them layer by layer gives."""
    plain = tiny(seed, layers=12, devices=4, samples=8)
    problem = dataclasses.replace(
        plain, forward_s=in_whole_ns(plain.forward_s), backward_s=in_whole_ns(plain.backward_s)
    )
    for method in ("asteroid", "dapple", "dp"):
        plan = solve(problem, method=method)
        assert plan.objective == pytest.approx(contract.round_s(problem, plan), abs=1e-12)


def in_whole_ns(rows: contract.Rows) -> contract.Rows:
    """Times as a clock that counts nanoseconds gives them."""
    return tuple(tuple(tuple(round(x, 9) for x in sizes) for sizes in row) for row in rows)


@settings(max_examples=300, deadline=None)
@given(posed(), st.sampled_from([0.0, 3e-7]))
def test_fast_and_slow_judge_agree(given: tuple[Problem, Draft], lost_s_per_byte: float) -> None:
    """A sketch's score is the simulation's round where memory suffices, and the bytes that lack where not; so too
    where every byte on a link costs its devices time."""
    (problem, draft), instance = given, Instance(given[0], (lost_s_per_byte,) * len(given[0].devices))
    found, cost = (
        int(score(instance.arrays, candidate_of(instance, draft), new_evaluator(instance), WORST_SCORE)),
        evaluate(instance, draft),
    )
    if cost.shortfall is None:
        assert found == simulate(pipeline_of(instance, draft)).round_ns == round(cost.round_s * 1e9)
        return
    lacking = sum(
        max(0, peak - problem.devices[device].memory_bytes)
        for stage, peaks in zip(draft.stages, cost.memory_bytes, strict=True)
        for device, peak in zip(stage.devices, peaks, strict=True)
    )
    assert found == OUT_OF_MEMORY + lacking


@settings(max_examples=300, deadline=None)
@given(posed())
def test_nothing_good_is_given_up(given: tuple[Problem, Draft]) -> None:
    """What is a nanosecond better than asked for is never refused by a bound; what is not is never said to be."""
    instance, evaluator = Instance(given[0]), new_evaluator(Instance(given[0]))
    candidate = candidate_of(instance, given[1])
    exact = int(score(instance.arrays, candidate, evaluator, WORST_SCORE))
    assert score(instance.arrays, candidate, evaluator, exact + 1) == exact
    assert score(instance.arrays, candidate, evaluator, exact) in (exact, WORST_SCORE)


@settings(max_examples=100, deadline=None)
@given(posed())
def test_a_bench_forgets(given: tuple[Problem, Draft]) -> None:
    """A score does not depend on what was measured before on the same bench."""
    instance, draft = Instance(given[0]), given[1]
    assume(len(draft.stages) > 1)
    used, first = new_evaluator(instance), Draft(draft.stages[:1], draft.warmups[:1])
    whole = first._replace(stages=(first.stages[0]._replace(end=instance.layers),))
    alone = score(instance.arrays, candidate_of(instance, draft), new_evaluator(instance), WORST_SCORE)
    score(instance.arrays, candidate_of(instance, whole), used, WORST_SCORE)
    assert score(instance.arrays, candidate_of(instance, draft), used, WORST_SCORE) == alone


@settings(max_examples=100, deadline=None)
@given(posed())
def test_a_sketch_is_its_draft(given: tuple[Problem, Draft]) -> None:
    """There and back nothing is lost."""
    assert to_draft(candidate_of(Instance(given[0]), given[1])) == given[1]
