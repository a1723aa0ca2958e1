"""One helper's schedule by simple rules that never let it idle while a task waits, given the clients it has."""

import heapq
from collections.abc import Callable, Iterable, Sequence

from fleetune.solving.split.case import Case
from fleetune.solving.split.schedule import BACKWARD, FORWARD, Row

Rank = Callable[[int, int, int], tuple[int, ...]]
"""Client, direction, time the task became ready -> the smaller, the earlier it is served."""


def first_come(case: Case, helper: int, clients: Iterable[int]) -> list[Row]:
    """First come, first served by readiness, nothing interrupted (Tirana et al., section VI, balanced-greedy's step 2).

    A forward is ready at its release, a backward l + l' after its forward ended; ties go to the lower client.
    """
    return _run(case, helper, clients, lambda client, direction, ready: (ready, client, direction))


def by_priority(
    case: Case, helper: int, clients: Iterable[int], priority: Sequence[Sequence[int]], *, preempt: bool = False
) -> list[Row]:
    """Whenever free, the ready task with the smallest priority[direction][client]; ties to the lower client.

    preempt: a task that becomes ready with a smaller priority interrupts the one that runs.
    """

    def rank(client: int, direction: int, _ready: int) -> tuple[int, ...]:
        return int(priority[direction][client]), client, direction

    return _run_preemptive(case, helper, clients, rank) if preempt else _run(case, helper, clients, rank)


def everywhere(case: Case, helper: Sequence[int], rule: Callable[[Case, int, list[int]], list[Row]]) -> list[Row]:
    """All helpers by one rule, given the helper of each client."""
    groups: list[list[int]] = [[] for _ in range(case.helpers)]
    for client, i in enumerate(helper):
        groups[i].append(client)
    return [row for i, clients in enumerate(groups) for row in rule(case, i, clients)]


def _run(case: Case, helper: int, clients: Iterable[int], rank: Rank) -> list[Row]:
    lengths = (case.forward[helper].tolist(), case.backward[helper].tolist())
    between, coming = case.between[helper].tolist(), _releases(case, helper, clients)
    waiting: list[tuple[tuple[int, ...], int, int]] = []
    rows: list[Row] = []
    now = 0
    while coming or waiting:
        if not waiting:
            now = max(now, coming[0][0])
        while coming and coming[0][0] <= now:
            ready, client, direction = heapq.heappop(coming)
            heapq.heappush(waiting, (rank(client, direction, ready), client, direction))
        _, client, direction = heapq.heappop(waiting)
        end = now + lengths[direction][client]
        rows.append(Row(client, direction, now, end))
        if direction == FORWARD:
            heapq.heappush(coming, (end + between[client], client, BACKWARD))
        now = end
    return rows


def _run_preemptive(case: Case, helper: int, clients: Iterable[int], rank: Rank) -> list[Row]:
    left = [case.forward[helper].tolist(), case.backward[helper].tolist()]
    between, coming = case.between[helper].tolist(), _releases(case, helper, clients)
    waiting: list[tuple[tuple[int, ...], int, int]] = []
    rows: list[Row] = []
    now = 0
    while coming or waiting:
        if not waiting:
            now = max(now, coming[0][0])
        while coming and coming[0][0] <= now:
            ready, client, direction = heapq.heappop(coming)
            heapq.heappush(waiting, (rank(client, direction, ready), client, direction))
        _, client, direction = waiting[0]
        end = now + left[direction][client]
        if coming:
            end = min(end, coming[0][0])
        left[direction][client] -= end - now
        if rows and rows[-1][:2] == (client, direction) and rows[-1].end == now:
            rows[-1] = rows[-1]._replace(end=end)
        else:
            rows.append(Row(client, direction, now, end))
        if left[direction][client] == 0:
            heapq.heappop(waiting)
            if direction == FORWARD:
                heapq.heappush(coming, (end + between[client], client, BACKWARD))
        now = end
    return rows


def _releases(case: Case, helper: int, clients: Iterable[int]) -> list[tuple[int, int, int]]:
    """A heap of the forwards by release: time, client, direction."""
    release = case.release[helper].tolist()
    coming = [(release[client], client, FORWARD) for client in clients]
    heapq.heapify(coming)
    return coming
