"""Annealing of `search`: every candidate of a walk is a plan that keeps the problem's rules."""

from itertools import chain, combinations, pairwise, permutations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fleetune.jit import compiled
from fleetune.solving.hpp.annealing import (
    Cooling,
    ScoreCache,
    ScoredDraft,
    anneal,
    groups_key,
    look_up,
    new_score_cache,
    plan_key,
    store,
)
from fleetune.solving.hpp.candidate import (
    OUT_OF_MEMORY,
    WORST_SCORE,
    Candidate,
    candidate_of,
    new_evaluator,
    score,
    to_draft,
)
from fleetune.solving.hpp.draft import Draft, DraftStage
from fleetune.solving.hpp.instance import Instance
from fleetune.solving.hpp.methods.search import Search, SearchOptions
from fleetune.solving.hpp.problem import Problem
from tests.support.solving.hpp import reference
from tests.support.solving.hpp.instances import tiny
from tests.support.solving.hpp.problem_strategies import drafts, problems

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
        result.append((int(walk.scores[0]), to_draft(walk.current)))
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
        reference.assert_plan(problem, reference.stages_of(problem, draft))
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


@compiled
def keys(candidate: Candidate) -> tuple[int, int, int]:
    """Keys of the plan, of groups and cuts, and of groups."""
    return plan_key(candidate), groups_key(candidate, False), groups_key(candidate, True)


@compiled
def told(cache: ScoreCache, key: int, score: int, exact: bool) -> None:
    """`store`, callable from Python."""
    store(cache, key, score, exact)


@compiled
def asked(cache: ScoreCache, key: int) -> tuple[int, bool]:
    """`look_up`, callable from Python."""
    return look_up(cache, key)


def parts(draft: Draft) -> tuple[object, object, object]:
    """The parts of a draft that the three keys identify."""
    groups = tuple(stage.devices for stage in draft.stages)
    return draft, (groups, tuple(stage.end for stage in draft.stages)), groups


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_keys_tell_plans_apart(data: st.DataObject) -> None:
    """Two drafts have equal keys exactly where the identified parts are equal."""
    instance = Instance(data.draw(problems()))
    known: list[dict[object, int]] = [{}, {}, {}]
    for draft in data.draw(st.lists(drafts(instance), min_size=2, max_size=12)):
        for kind, part, key in zip(known, parts(draft), keys(candidate_of(instance, draft)), strict=True):
            assert kind.setdefault(part, key) == key
    for kind in known:
        assert len(set(kind.values())) == len(kind)


def test_all_groups_of_five_devices_have_their_own_key() -> None:
    """All groupings and orders of up to five devices have different keys."""
    instance = Instance(tiny(1, layers=6, devices=5, samples=6))
    made = []
    for used in range(1, 6):
        for order in permutations(range(5), used):
            for cuts in chain.from_iterable(combinations(range(1, used), k) for k in range(used)):
                marks = (0, *cuts, used)
                groups = [order[a:b] for a, b in pairwise(marks)]
                ends = [*range(1, len(groups)), 6]
                stages = [DraftStage(p, ends[p], group, (1,) * len(group)) for p, group in enumerate(groups)]
                made.append(Draft(tuple(stages), (1,) * len(stages)))
    for kind in zip(*(keys(candidate_of(instance, draft)) for draft in made), strict=True):
        assert len(set(kind)) == len(made)


def test_a_slot_holds_its_last_entry() -> None:
    """A new entry replaces an older one of its key, and any entry in its slot."""
    cache, key, rival = new_score_cache(), 1, 2**18 + 3
    assert asked(cache, key) == (0, False)
    told(cache, key, 7, False)
    assert asked(cache, key) == (7, False)
    told(cache, key, 9, True)
    assert asked(cache, key) == (9, True)
    told(cache, rival, 3, True)
    assert asked(cache, rival) == (3, True)
    assert asked(cache, key) == (0, False)
