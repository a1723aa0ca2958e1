"""Schedules as rows of whole time units: their cost, validation, and first come, first served dispatching.

`SearchOptions` and `Candidate` are the input and the output of every method.
"""

import heapq
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from fleetune.solving.split.instance import Instance

FORWARD, BACKWARD = 0, 1


class TaskRow(NamedTuple):
    """A client's task, or a piece of it, on its helper during [start, end)."""

    client: int
    direction: int
    """FORWARD or BACKWARD"""
    start: int
    end: int


def merged(rows: Iterable[TaskRow]) -> list[TaskRow]:
    """Sort rows by client, direction and start, and join adjacent pieces of a task, which need no switch."""
    joined: list[TaskRow] = []
    for row in sorted(rows):
        if joined and joined[-1][:2] == row[:2] and joined[-1].end == row.start:
            joined[-1] = joined[-1]._replace(end=row.end)
        else:
            joined.append(row)
    return joined


def completion(instance: Instance, helper: Sequence[int], rows: Iterable[TaskRow]) -> list[int]:
    """Return [client] the end of its last backward + tail + the helper's switch cost for each of its pieces.

    A piece is a start or a resume: 2 if nothing was interrupted.
    """
    ends, pieces = [0] * instance.clients, [0] * instance.clients
    for row in merged(rows):
        pieces[row.client] += 1
        if row.direction == BACKWARD:
            ends[row.client] = max(ends[row.client], row.end)
    return [
        ends[j] + int(instance.tail[i, j]) + int(instance.switch_cost[i]) * pieces[j]
        for j, i in enumerate(map(int, helper))
    ]


def makespan(instance: Instance, helper: Sequence[int], rows: Iterable[TaskRow]) -> int:
    """Return the largest completion time."""
    return max(completion(instance, helper, rows))


def verify(instance: Instance, helper: Sequence[int], rows: Iterable[TaskRow]) -> None:
    """Raise AssertionError with the reason if the schedule is invalid; the last check before a plan is returned."""
    assert len(helper) == instance.clients, f"{len(helper)} helpers are named for {instance.clients} clients"
    for j, i in enumerate(helper):
        assert 0 <= i < instance.helpers, f"client {j} is on helper {i}, which does not exist"
        assert instance.linked[i, j], f"client {j} has no link to helper {i}, or does not fit it"
    for i in range(instance.helpers):
        assert instance.fits(i, [j for j in range(instance.clients) if helper[j] == i]), f"helper {i} lacks memory"
    tasks: dict[tuple[int, int], list[TaskRow]] = {
        (j, way): [] for j in range(instance.clients) for way in (FORWARD, BACKWARD)
    }
    for row in sorted(rows, key=lambda row: row.start):
        assert (row.client, row.direction) in tasks, f"{row} is no client's task"
        assert row.start < row.end, f"{row} takes no time"
        tasks[row.client, row.direction].append(row)
    for j, i in enumerate(helper):
        _verify_client(instance, i, tasks[j, FORWARD], tasks[j, BACKWARD], j)
    for i in range(instance.helpers):
        _verify_helper([row for (j, _), pieces in tasks.items() if helper[j] == i for row in pieces], i)


def _verify_client(
    instance: Instance, helper: int, forward: list[TaskRow], backward: list[TaskRow], client: int
) -> None:
    for pieces, times, name in ((forward, instance.forward, "forward"), (backward, instance.backward, "backward")):
        lasts, wanted = sum(row.end - row.start for row in pieces), int(times[helper, client])
        assert lasts == wanted, f"{name} of client {client} lasts {lasts}, not {wanted}"
        assert instance.preemptive or len(merged(pieces)) == 1, f"{name} of client {client} is interrupted"
    released, ready = int(instance.release[helper, client]), forward[-1].end + int(instance.turnaround[helper, client])
    assert forward[0].start >= released, f"forward of client {client} starts before its release at {released}"
    assert backward[0].start >= ready, f"backward of client {client} starts before its gradients are there at {ready}"


def _verify_helper(rows: list[TaskRow], helper: int) -> None:
    rows = sorted(rows, key=lambda row: row.start)
    for one, other in zip(rows, rows[1:], strict=False):
        assert one.end <= other.start, f"helper {helper} runs {one} and {other} at once"


def first_come_first_served(instance: Instance, helper: int, clients: Iterable[int]) -> list[TaskRow]:
    """Schedule one helper first come, first served, without preemption (Tirana et al., section VI, step 2).

    A forward is ready at its release, a backward l + l' after its forward ended; ties go to the lower client.
    """
    lengths = (instance.forward[helper].tolist(), instance.backward[helper].tolist())
    release, turnaround = instance.release[helper].tolist(), instance.turnaround[helper].tolist()
    waiting = [(release[client], client, FORWARD) for client in clients]
    heapq.heapify(waiting)
    rows: list[TaskRow] = []
    now = 0
    while waiting:
        ready, client, direction = heapq.heappop(waiting)
        start = max(now, ready)
        now = start + lengths[direction][client]
        rows.append(TaskRow(client, direction, start, now))
        if direction == FORWARD:
            heapq.heappush(waiting, (now + turnaround[client], client, BACKWARD))
    return rows


def schedule_helpers(
    instance: Instance, helper: Sequence[int], rule: Callable[[Instance, int, list[int]], list[TaskRow]]
) -> list[TaskRow]:
    """Schedule all helpers by one rule. helper: [client]."""
    groups: list[list[int]] = [[] for _ in range(instance.helpers)]
    for client, i in enumerate(helper):
        groups[i].append(client)
    return [row for i, clients in enumerate(groups) for row in rule(instance, i, clients)]


class SearchOptions(NamedTuple):
    """Seed and limits of a search."""

    seed: int = 0
    time_limit_s: float | None = None
    """None: a fixed amount of work."""
    feasible: Sequence[int] | None = None
    """[client], a known assignment that fits; finding one can be hard."""


class Gap(NamedTuple):
    """Best known bound and plan of a problem."""

    lower_bound: int
    """No plan has a shorter makespan."""
    makespan: int


class Candidate(NamedTuple):
    """A schedule and its assignment."""

    helper: Sequence[int]
    """[client]"""
    rows: list[TaskRow]
    lower_bound: int | None = None
    """Proven bound on the makespan of every plan; None if the method proves none."""
    deterministic: bool = True
