"""The cache of scores of candidates."""

from itertools import chain, combinations, pairwise, permutations

from hypothesis import given, settings
from hypothesis import strategies as st

from fleetune.compiled import compiled
from fleetune.solving.hpp.candidate import Candidate, candidate_of
from fleetune.solving.hpp.draft import Draft, DraftStage
from fleetune.solving.hpp.instance import Instance
from fleetune.solving.hpp.score_cache import ScoreCache, groups_key, look_up, new_score_cache, plan_key, store
from tests.solving.hpp.instances import tiny
from tests.solving.hpp.problem_strategies import drafts, problems


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
                stages = [DraftStage(p, p + 1, group, (1,) * len(group)) for p, group in enumerate(groups)]
                made.append(Draft((*stages[:-1], stages[-1]._replace(end=6)), (1,) * len(stages)))
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
