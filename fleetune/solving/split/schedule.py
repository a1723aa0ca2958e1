"""A schedule as rows of whole time units: what it costs, and proof that it keeps to the contract."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from fleetune.solving.split.case import Case

FORWARD, BACKWARD = 0, 1


class Row(NamedTuple):
    """A client's task, or a piece of it, on its helper during [start, end)."""

    client: int
    direction: int
    """FORWARD or BACKWARD"""
    start: int
    end: int


def merged(rows: Iterable[Row]) -> list[Row]:
    """By client, direction and start; pieces of one task that abut are one: nothing was switched between them."""
    joined: list[Row] = []
    for row in sorted(rows):
        if joined and joined[-1][:2] == row[:2] and joined[-1].end == row.start:
            joined[-1] = joined[-1]._replace(end=row.end)
        else:
            joined.append(row)
    return joined


def completion(case: Case, helper: Sequence[int], rows: Iterable[Row]) -> list[int]:
    """Of every client: the end of its last backward piece + its tail + its helper's switch cost for each of its pieces.

    A piece is a start or a resume, so 2 where nothing was interrupted.
    """
    ends, pieces = [0] * case.clients, [0] * case.clients
    for row in merged(rows):
        pieces[row.client] += 1
        if row.direction == BACKWARD:
            ends[row.client] = max(ends[row.client], row.end)
    return [
        ends[j] + int(case.tail[i, j]) + int(case.switch_cost[i]) * pieces[j] for j, i in enumerate(map(int, helper))
    ]


def makespan(case: Case, helper: Sequence[int], rows: Iterable[Row]) -> int:
    """The largest completion."""
    return max(completion(case, helper, rows))


def verify(case: Case, helper: Sequence[int], rows: Iterable[Row]) -> None:
    """AssertionError, in words, where the contract is broken; the last proof before a plan is handed out."""
    assert len(helper) == case.clients, f"{len(helper)} helpers are named for {case.clients} clients"
    for j, i in enumerate(helper):
        assert 0 <= i < case.helpers, f"client {j} is on helper {i}, which does not exist"
        assert case.linked[i, j], f"client {j} has no link to helper {i}, or does not fit it"
    for i in range(case.helpers):
        assert case.fits(i, [j for j in range(case.clients) if helper[j] == i]), f"helper {i} lacks memory"
    tasks: dict[tuple[int, int], list[Row]] = {(j, way): [] for j in range(case.clients) for way in (FORWARD, BACKWARD)}
    for row in sorted(rows, key=lambda row: row.start):
        assert (row.client, row.direction) in tasks, f"{row} is no client's task"
        assert row.start < row.end, f"{row} takes no time"
        tasks[row.client, row.direction].append(row)
    for j, i in enumerate(helper):
        _verify_client(case, i, tasks[j, FORWARD], tasks[j, BACKWARD], j)
    for i in range(case.helpers):
        _verify_helper([row for (j, _), pieces in tasks.items() if helper[j] == i for row in pieces], i)


def _verify_client(case: Case, helper: int, forward: list[Row], backward: list[Row], client: int) -> None:
    for pieces, times, name in ((forward, case.forward, "forward"), (backward, case.backward, "backward")):
        lasts, wanted = sum(row.end - row.start for row in pieces), int(times[helper, client])
        assert lasts == wanted, f"{name} of client {client} lasts {lasts}, not {wanted}"
        assert case.preemptive or len(merged(pieces)) == 1, f"{name} of client {client} is interrupted"
    released, ready = int(case.release[helper, client]), forward[-1].end + int(case.between[helper, client])
    assert forward[0].start >= released, f"forward of client {client} starts before its release at {released}"
    assert backward[0].start >= ready, f"backward of client {client} starts before its gradients are there at {ready}"


def _verify_helper(rows: list[Row], helper: int) -> None:
    rows = sorted(rows, key=lambda row: row.start)
    for one, other in zip(rows, rows[1:], strict=False):
        assert one.end <= other.start, f"helper {helper} runs {one} and {other} at once"
