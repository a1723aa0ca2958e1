"""Plans of any kind, good or bad, for properties that hold of all of them."""

from hypothesis import strategies as st

from fleetune.solving.hpp.draft import Draft, DraftStage
from fleetune.solving.hpp.instance import Instance
from fleetune.solving.hpp.problem import Problem
from tests.solving.hpp.problem_strategies import problems


@st.composite
def posed(draw: st.DrawFn) -> tuple[Problem, Draft]:
    """An odd problem and any plan of it: memory is not looked at, K falls or stays the same from stage to stage."""
    problem = draw(problems())
    return problem, draw(drafts(Instance(problem)))


@st.composite
def drafts(draw: st.DrawFn, instance: Instance) -> Draft:
    """Any plan of the case."""
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
