"""Annealing of `search`: every candidate of a walk is a plan that keeps the problem's rules."""

import pytest

from fleetune.solving.hpp.annealing import Cooling, ScoredDraft, anneal
from fleetune.solving.hpp.candidate import OUT_OF_MEMORY, WORST_SCORE, candidate_of, new_evaluator, score, to_draft
from fleetune.solving.hpp.draft import Draft, DraftStage
from fleetune.solving.hpp.instance import Instance
from fleetune.solving.hpp.methods.search import Search, SearchOptions
from fleetune.solving.hpp.problem import Problem
from tests.solving.hpp import contract
from tests.solving.hpp.instances import tiny

STEPS = 1500
RULES = {
    "paper's K": tiny(1, layers=7, devices=5, samples=6),
    "K of P-p": tiny(2, layers=3, devices=5, samples=2, warmup="P-p"),
    "two stages listed": tiny(3, layers=6, devices=5, samples=5, warmup=(4, 2)),
    "four stages listed": tiny(4, layers=4, devices=5, samples=3, warmup=(6, 5, 5, 1)),
    "free": tiny(5, layers=6, devices=4, samples=4, warmup="free"),
    "free in little memory": tiny(6, layers=6, devices=4, samples=4, warmup="free", memory=0.3),
    "little memory": tiny(7, layers=6, devices=4, samples=4, memory=0.3),
    "one sample": tiny(8, layers=5, devices=4, samples=1),
    "one layer": tiny(9, layers=1, devices=4, samples=6),
    "one device": tiny(10, layers=4, devices=1, samples=3),
}


def start(instance: Instance, *, every_device: bool) -> Draft:
    """A naive draft: one device per stage in one stage or as many as are listed, or all devices in the most stages."""
    listed = instance.problem.warmup
    stages = (instance.max_stages if every_device else 1) if isinstance(listed, str) else len(listed)
    edges = [*range(stages), instance.layers]
    groups = [tuple(range(p, instance.devices if every_device else stages, stages)) for p in range(stages)]
    made = [
        DraftStage(edges[p], edges[p + 1], group, (instance.samples - len(group) + 1, *(1,) * (len(group) - 1)))
        for p, group in enumerate(groups)
    ]
    return Draft(tuple(made), tuple(instance.warmups(stages)))


def visited(problem: Problem, *, every_device: bool) -> list[tuple[int, Draft]]:
    """Every plan that a hot walk visits, step by step, with its score."""
    instance = Instance(problem)
    worker = Search(instance, SearchOptions(seed=1, every_device=every_device)).workers[0]
    first = start(instance, every_device=every_device)
    found = int(score(instance.arrays, candidate_of(instance, first), worker.evaluator, WORST_SCORE))
    walk = worker.start(ScoredDraft(found, first))
    result = []
    for _ in range(STEPS):
        anneal(instance.arrays, worker.evaluator, worker.rules, walk, worker.rng, Cooling(1, 0.5, 0.4))
        result.append((int(walk.scores[0]), to_draft(walk.here)))
        assert walk.scores[1] <= walk.scores[0]
    best = int(score(instance.arrays, walk.best, worker.evaluator, WORST_SCORE))
    assert best == walk.scores[1] == min(found, *(value for value, _ in result))
    return result


@pytest.mark.parametrize("every_device", [False, True], ids=["any devices", "every device"])
@pytest.mark.parametrize("rules", RULES)
def test_every_step_is_a_plan(rules: str, every_device: bool) -> None:
    """Every visited candidate is a valid plan by the rules, on every device where asked, and has its score."""
    problem = RULES[rules]
    instance = Instance(problem)
    seen = visited(problem, every_device=every_device)
    evaluator = new_evaluator(instance)
    for draft, value in {draft: value for value, draft in seen}.items():
        contract.assert_plan(problem, contract.stages_of(problem, draft))
        if every_device:
            assert sum(len(stage.devices) for stage in draft.stages) == instance.devices
        assert score(instance.arrays, candidate_of(instance, draft), evaluator, WORST_SCORE) == value


def test_a_hot_walk_visits_plans_of_every_shape() -> None:
    """A hot walk visits plans of every number of stages and devices, other orders in a group, and K above the paper's
    where the rules allow it."""
    seen = {draft for _, draft in visited(RULES["free"], every_device=False)}
    assert {len(draft.stages) for draft in seen} == {1, 2, 3, 4}
    assert {sum(len(stage.devices) for stage in draft.stages) for draft in seen} == {1, 2, 3, 4}
    groups = [stage.devices for draft in seen for stage in draft.stages]
    assert any(group != tuple(sorted(group)) for group in groups)
    kept = {draft.warmups[-1] for draft in seen}
    assert {1, 2, 3} <= kept


def test_a_walk_reaches_a_plan_that_fits() -> None:
    """A walk from a plan that does not fit reaches one that does."""
    seen = visited(RULES["little memory"], every_device=False)
    assert seen[0][0] >= OUT_OF_MEMORY
    assert min(value for value, _ in seen) < OUT_OF_MEMORY
