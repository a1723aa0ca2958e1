"""Schedules: cost and validation by hand, and dispatching of one helper by simple rules."""

import itertools
import random
from collections.abc import Callable, Iterable, Sequence

import pytest

from fleetune.solving.split.instance import Instance
from fleetune.solving.split.problem import Problem
from fleetune.solving.split.schedule import (
    BACKWARD,
    FORWARD,
    TaskRow,
    completion,
    first_come_first_served,
    makespan,
    merged,
    schedule_helpers,
    verify,
)
from tests.support.solving.named_tuples import changed
from tests.support.solving.split import reference
from tests.support.solving.split.problems import random_problem


def two_clients(*, preemptive: bool = True, switch: int = 0) -> Instance:
    """Two clients of forward 2, backward 3, between 1 + 1, tail 4; client 1 is released at 5 on helper 0 of two."""
    problem = Problem(
        release=((0, 5), (0, None)),
        forward=((2, 2), (2, 2)),
        turnaround_forward=((1, 1), (1, 1)),
        turnaround_backward=((1, 1), (1, 1)),
        backward=((3, 3), (3, 3)),
        tail=((4, 4), (4, 4)),
        helper_memory=(2, 1),
        client_memory=(1, 1),
        preemptive=preemptive,
        switch_cost=(switch, 0),
    )
    return Instance.from_problem(problem)


WHOLE = [TaskRow(0, FORWARD, 0, 2), TaskRow(0, BACKWARD, 4, 7), TaskRow(1, FORWARD, 7, 9), TaskRow(1, BACKWARD, 11, 14)]
PIECES = [
    TaskRow(0, FORWARD, 0, 2), TaskRow(0, BACKWARD, 4, 5), TaskRow(1, FORWARD, 5, 7), TaskRow(0, BACKWARD, 7, 9),
    TaskRow(1, BACKWARD, 9, 12),
]  # fmt: skip


def test_completion_by_hand() -> None:
    """Completion is the end of the last backward + tail + the switch cost of every start and resume."""
    assert completion(two_clients(), [0, 0], WHOLE) == [11, 18]
    assert completion(two_clients(), [0, 0], PIECES) == [13, 16]
    assert completion(two_clients(switch=10), [0, 0], WHOLE) == [31, 38]
    assert completion(two_clients(switch=10), [0, 0], PIECES) == [43, 36]
    assert makespan(two_clients(switch=10), [0, 0], PIECES) == 43


def test_pieces_that_abut_are_one() -> None:
    """Adjacent pieces of one task are joined in any input order; other tasks and gaps keep them apart."""
    cut = [TaskRow(0, BACKWARD, 5, 7), TaskRow(0, FORWARD, 0, 2), TaskRow(0, BACKWARD, 4, 5), *WHOLE[2:]]
    assert merged(cut) == sorted(WHOLE)
    assert merged(PIECES) == sorted(PIECES)
    assert completion(two_clients(switch=10), [0, 0], cut) == [31, 38]
    assert merged([TaskRow(0, FORWARD, 0, 2), TaskRow(0, BACKWARD, 2, 3)]) == [
        TaskRow(0, FORWARD, 0, 2),
        TaskRow(0, BACKWARD, 2, 3),
    ]


def test_what_keeps_to_the_contract() -> None:
    """Two valid schedules pass."""
    verify(two_clients(), [0, 0], WHOLE)
    verify(two_clients(preemptive=False), [0, 0], WHOLE)
    verify(two_clients(), [0, 0], PIECES)
    verify(two_clients(), [0, 0], merged(PIECES))


@pytest.mark.parametrize(
    ("helper", "rows", "said"),
    [
        ([0], WHOLE, "1 helpers are named for 2 clients"),
        ([0, 2], WHOLE, "client 1 is on helper 2, which does not exist"),
        ([0, -1], WHOLE, "client 1 is on helper -1"),
        ([0, 1], WHOLE, "client 1 has no link to helper 1"),
        ([0, 0], WHOLE[:3], "backward of client 1 lasts 0, not 3"),
        ([0, 0], [*WHOLE, TaskRow(2, FORWARD, 20, 21)], "is no client's task"),
        ([0, 0], [*WHOLE, TaskRow(1, BACKWARD, 14, 14)], "takes no time"),
        ([0, 0], [*WHOLE[:3], TaskRow(1, BACKWARD, 11, 15)], "backward of client 1 lasts 4, not 3"),
        ([0, 0], [*WHOLE[:3], TaskRow(1, BACKWARD, 10, 13)],
         "backward of client 1 starts before its gradients are there"),
        ([0, 0], [*WHOLE[:2], TaskRow(1, FORWARD, 6, 8), WHOLE[3]], "helper 0 runs"),
        ([0, 0], [WHOLE[0], TaskRow(0, BACKWARD, 9, 12), TaskRow(1, FORWARD, 4, 6), TaskRow(1, BACKWARD, 12, 15)],
         "forward of client 1 starts before its release at 5"),
    ],
)  # fmt: skip
def test_what_breaks_it(helper: list[int], rows: list[TaskRow], said: str) -> None:
    """Each violation is described in words."""
    with pytest.raises(AssertionError, match=said):
        verify(two_clients(), helper, rows)


def test_interruptions_need_leave() -> None:
    """A problem without preemption has tasks in one piece."""
    with pytest.raises(AssertionError, match="backward of client 0 is interrupted"):
        verify(two_clients(preemptive=False), [0, 0], PIECES)


def test_memory() -> None:
    """Clients that fit one by one may not fit together."""
    instance = changed(two_clients(), helper_memory=two_clients().helper_memory - 1)
    with pytest.raises(AssertionError, match="helper 0 lacks memory"):
        verify(instance, [0, 0], WHOLE)


Rank = Callable[[int, int, int], tuple[int, ...]]
"""(client, direction, ready time) -> priority, smallest first."""


def dispatched(
    instance: Instance, helper: int, clients: Iterable[int], rank: Rank, *, preempt: bool = False
) -> list[TaskRow]:
    """Give each unit of time to the ready task of least rank, unless a task that may not be interrupted runs."""
    ready = {(j, FORWARD): int(instance.release[helper, j]) for j in clients}
    lengths = (instance.forward, instance.backward)
    left = {(j, way): int(lengths[way][helper, j]) for j, _ in ready for way in (FORWARD, BACKWARD)}
    running: tuple[int, int] | None = None
    units: list[TaskRow] = []
    for now in itertools.count():
        waiting = [task for task in ready if left[task] and ready[task] <= now]
        if running is None or not left[running] or preempt:
            running = min(waiting, key=lambda task: rank(*task, ready[task]), default=None)
        if running is not None:
            units.append(TaskRow(*running, now, now + 1))
            left[running] -= 1
            if running[1] == FORWARD and not left[running]:
                ready[running[0], BACKWARD] = now + 1 + int(instance.turnaround[helper, running[0]])
        if not any(left.values()):
            return sorted(merged(units), key=lambda row: row.start)
    raise AssertionError("unreachable")


def by_priority(
    instance: Instance, helper: int, clients: Iterable[int], priority: Sequence[Sequence[int]], *, preempt: bool = False
) -> list[TaskRow]:
    """Dispatch the ready task with the smallest priority[direction][client] whenever free; ties to the lower client.

    preempt: a task that becomes ready with a smaller priority interrupts the one that runs.
    """

    def rank(client: int, direction: int, _ready: int) -> tuple[int, ...]:
        return int(priority[direction][client]), client, direction

    return dispatched(instance, helper, clients, rank, preempt=preempt)


def single_helper(release: list[int], forward: list[int], turnaround: list[int], backward: list[int]) -> Instance:
    """Return an instance of one helper with memory for all, without tails."""
    count = len(release)
    problem = Problem(
        release=(tuple(release),),
        forward=(tuple(forward),),
        turnaround_forward=(tuple(turnaround),),
        turnaround_backward=((0,) * count,),
        backward=(tuple(backward),),
        tail=((0,) * count,),
        helper_memory=(float(count),),
        client_memory=(1.0,) * count,
        preemptive=True,
        switch_cost=(0,),
    )
    return Instance.from_problem(problem)


def test_first_come_by_hand() -> None:
    """Client 1 came at 1 and waits for client 0; its backward, ready at 7, comes before the forward released at 8."""
    instance = single_helper([0, 1, 8], [4, 2, 1], [10, 1, 0], [1, 3, 1])
    assert first_come_first_served(instance, 0, [0, 1, 2]) == [
        TaskRow(0, FORWARD, 0, 4),
        TaskRow(1, FORWARD, 4, 6),
        TaskRow(1, BACKWARD, 7, 10),
        TaskRow(2, FORWARD, 10, 11),
        TaskRow(2, BACKWARD, 11, 12),
        TaskRow(0, BACKWARD, 14, 15),
    ]


def test_ties_go_to_the_lower_client() -> None:
    """Ties go to the lower client in whatever order the clients are named."""
    instance = single_helper([0, 0, 0], [1, 1, 1], [0, 0, 0], [1, 1, 1])
    by_order = [first_come_first_served(instance, 0, order) for order in ([0, 1, 2], [2, 1, 0])]
    assert by_order[0] == by_order[1]
    assert [row.client for row in by_order[0]] == [0, 1, 2, 0, 1, 2]


def test_priorities_by_hand() -> None:
    """The urgent client waits for the one that runs, or interrupts it at once."""
    instance = single_helper([0, 2], [6, 2], [20, 0], [1, 2])
    priority = [[1, 0], [1, 0]]
    assert by_priority(instance, 0, [0, 1], priority)[:3] == [
        TaskRow(0, FORWARD, 0, 6), TaskRow(1, FORWARD, 6, 8), TaskRow(1, BACKWARD, 8, 10)
    ]  # fmt: skip
    assert by_priority(instance, 0, [0, 1], priority, preempt=True)[:4] == [
        TaskRow(0, FORWARD, 0, 2), TaskRow(1, FORWARD, 2, 4), TaskRow(1, BACKWARD, 4, 6), TaskRow(0, FORWARD, 6, 10)
    ]  # fmt: skip


def test_an_equal_priority_interrupts_nobody() -> None:
    """Ties go to the lower client, and equal tasks of one client follow each other."""
    instance = single_helper([0, 2], [6, 2], [0, 0], [1, 2])
    rows = by_priority(instance, 0, [0, 1], [[0, 0], [0, 0]], preempt=True)
    assert rows == [
        TaskRow(0, FORWARD, 0, 6),
        TaskRow(0, BACKWARD, 6, 7),
        TaskRow(1, FORWARD, 7, 9),
        TaskRow(1, BACKWARD, 9, 11),
    ]


@pytest.mark.parametrize("preemptive", [False, True])
def test_every_rule_keeps_to_the_contract(preemptive: bool) -> None:
    """60 random problems with random priorities: schedules are valid, never idle while a task waits, never below the
    optimum."""
    for seed in range(60):
        problem = random_problem(seed, 2 + seed % 2, 1, preemptive=preemptive, room=9.0)
        instance, rng = Instance.from_problem(problem), random.Random(seed)
        clients = range(instance.clients)
        priority = [[rng.randrange(3) for _ in clients] for _ in range(2)]
        optimum = reference.best(problem)
        assert optimum is not None
        in_turn = dispatched(instance, 0, clients, lambda client, direction, ready: (ready, client, direction))
        assert first_come_first_served(instance, 0, clients) == in_turn
        for rows in (
            first_come_first_served(instance, 0, clients),
            by_priority(instance, 0, clients, priority, preempt=preemptive),
        ):
            verify(instance, [0] * instance.clients, rows)
            assert merged(rows) == sorted(rows), "pieces abut"
            assert makespan(instance, [0] * instance.clients, rows) >= optimum
            assert busy(instance, rows)


def busy(instance: Instance, rows: list[TaskRow]) -> bool:
    """Return True if some task of `rows` runs in every unit of time in which one was ready and not done."""
    occupied = {t for row in rows for t in range(row.start, row.end)}
    for j in range(instance.clients):
        ahead = [row for row in rows if row[:2] == (j, FORWARD)]
        back = [row for row in rows if row[:2] == (j, BACKWARD)]
        for ready, pieces in ((instance.release[0, j], ahead), (ahead[-1].end + instance.turnaround[0, j], back)):
            if any(t not in occupied for t in range(int(ready), pieces[-1].end)):
                return False
    return True


def test_everywhere_serves_each_helper_its_own() -> None:
    """One rule schedules each helper with the clients assigned to it."""
    instance = Instance.from_problem(random_problem(4, 6, 3, preemptive=False, room=9.0))
    helper = [2, 0, 0, 2, 2, 0]
    rows = schedule_helpers(instance, helper, first_come_first_served)
    verify(instance, helper, rows)
    assert rows == first_come_first_served(instance, 0, [1, 2, 5]) + first_come_first_served(instance, 2, [0, 3, 4])
