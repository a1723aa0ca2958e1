"""Infeasible problems are recognised exactly, and the message names who lacks how much."""

import itertools
import random

import pytest

from fleetune.errors import Infeasible, TryAgain
from fleetune.solving.limits import Deadline
from fleetune.solving.split.assignment import even_assignment, find_assignment, largest_assignment, require_assignment
from fleetune.solving.split.instance import Instance
from fleetune.solving.split.problem import Problem
from tests.support.solving.split import reference
from tests.support.solving.split.problems import random_problem, with_memory


@pytest.mark.parametrize(
    ("problem", "said"),
    [
        (
            with_memory((9, 9), (1, 1), ((0, 1), (1, 1))),
            "client 1 has no link to any helper: each has null for it in some matrix; give the times of at least one, "
            "or leave the client out",
        ),
        (
            with_memory((3, 4), (1, 6)),
            "client 1 lacks 2 of memory on helper 1, the roomiest it has a link to (6 of 4); give a helper more "
            "memory, add one, or take part 2 of the clients smaller (other cut layers)",
        ),
        (
            with_memory((3, 9), (1, 6), ((1, 1),)),
            "client 1 lacks 3 of memory on helper 0, the roomiest it has a link to (6 of 3)",
        ),
        (with_memory((3, 4), (3, 3, 2.5)), "all helpers together lack 1.5 of memory (8.5 of 7)"),
        (with_memory((0.3,), (0.1, 0.3)), "all helpers together lack 0.1 of memory (0.4 of 0.3)"),
        (
            with_memory((3, 3), (2, 2, 2)),
            "at most 2 of 3 clients fit the memories and links together: without client ",
        ),
        (with_memory((3, 3), (2, 2, 2)), "and lacks 1 for it (2 of 1)"),
        (
            with_memory((4, 9), (3, 3), ((1, 0), (1, 1))),
            "at most 1 of 2 clients fit the memories and links together: without client 0, helper 0 has the most "
            "memory left of those that client 0 reaches, and lacks 2 for it (3 of 1)",
        ),
        (with_memory((5,) * 3, (4,) * 3 + (1,) * 3 + (0,)), None),
        (with_memory((2,), (1, 1)), None),
        (with_memory((0, 0), (0, 0)), None),
    ],
)
def test_who_lacks_what(problem: Problem, said: str | None) -> None:
    """The message names the binding constraint."""
    if said is None:
        assert len(require_assignment(Instance.from_problem(problem), problem)) == len(problem.client_memory)
        return
    with pytest.raises(Infeasible) as caught:
        require_assignment(Instance.from_problem(problem), problem)
    assert said in str(caught.value)


def test_infeasible_just_when_no_assignment_fits() -> None:
    """300 problems with little memory and few links agree with brute force; assignments keep memory and links."""
    outcomes = set()
    for seed in range(300):
        problem = random_problem(seed, 1 + seed % 6, 1 + seed % 3, preemptive=False, link=0.3, room=1.1)
        instance, all_of_them = Instance.from_problem(problem), reference.assignments(problem)
        outcomes.add(bool(all_of_them))
        for found in (find_assignment(instance), even_assignment(instance)):
            assert (found is not None) == bool(all_of_them)
            assert found is None or tuple(found) in all_of_them
        if all_of_them:
            require_assignment(instance, problem)
            fewest = min(max(map(helper.count, range(instance.helpers))) for helper in all_of_them)
            evenly = even_assignment(instance)
            assert evenly is not None and max(map(evenly.count, range(instance.helpers))) == fewest
        else:
            with pytest.raises(Infeasible):
                require_assignment(instance, problem)
    assert outcomes == {True, False}


def test_as_many_as_fit() -> None:
    """The largest number of clients that fit at once equals the enumerated one."""
    for seed in range(30):
        problem = random_problem(seed, 4, 2, preemptive=False, link=0.2, room=0.6)
        instance = Instance.from_problem(problem)
        most = 0
        for helper in itertools.product([-1, 0, 1], repeat=4):
            clients = [[j for j in range(4) if helper[j] == i] for i in range(2)]
            fits = all(instance.fits(i, clients[i]) and instance.linked[i, clients[i]].all() for i in range(2))
            most = max(most, sum(map(len, clients))) if fits else most
        found = largest_assignment(instance)
        assert found is not None and found.proven
        assert sum(i >= 0 for i in found.helper) == most


def test_a_packing_without_slack_is_found() -> None:
    """20 clients that fill 5 helpers exactly are assigned, which first fit cannot do."""
    rng = random.Random(3)
    clients: list[float] = []
    for _ in range(5):
        cuts = [0, *sorted(rng.sample(range(1, 200), 3)), 200]
        clients += [float(b - a) for a, b in itertools.pairwise(cuts)]
    rng.shuffle(clients)
    instance = Instance.from_problem(with_memory((200.0,) * 5, tuple(clients)))
    found = find_assignment(instance)
    assert found is not None
    assert all(sum(clients[j] for j in range(20) if found[j] == i) == 200 for i in range(5))


def test_out_of_time_is_not_infeasible() -> None:
    """Triples that fill twelve helpers exactly: running out of time is not reported as infeasible."""
    drawn_by = random.Random(1)
    pairs = [(drawn_by.randint(26_000, 40_000), drawn_by.randint(26_000, 33_000)) for _ in range(12)]
    sizes = [float(size) for one, other in pairs for size in (one, other, 100_000 - one - other)]
    drawn_by.shuffle(sizes)
    problem = with_memory((100_000.0,) * 12, tuple(sizes))
    with pytest.raises(TryAgain, match="found neither an assignment of the clients that fits all memories, nor"):
        require_assignment(Instance.from_problem(problem), problem, Deadline(1e-9))
