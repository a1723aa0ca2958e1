"""Problem and solution of kind "split", as in JSON: times of every client on every helper, and a schedule."""

from collections.abc import Sequence
from typing import Annotated, Literal

from pydantic import Strict

from fleetune.contracts.record import finite, record
from fleetune.errors import Refused
from fleetune.solving.validation import Real, Whole, plural, validate_range

Matrix = tuple[tuple[Whole | None, ...], ...]
"""[helper][client], in time units; None: no link."""
MAX_TIME = 2**50
"""Limit of the sum of all tasks and delays, in time units, so that 64-bit integers and doubles hold every sum."""
MAX_PAIRS = 4_000_000
"""Limit of helpers times clients."""


@record
class Problem:
    """One batch of parallel split learning: choose a helper for part 2 of each client, and when it runs.

    Construction validates it; Refused names the first fault by field, helper and client.
    """

    kind: Literal["split"] = "split"
    release: Matrix
    """r: part 1 forward on the client and the upload."""
    forward: Matrix
    """p: part 2 forward on the helper, at least 1."""
    turnaround_forward: Matrix
    """l: the download and part 3 forward on the client."""
    turnaround_backward: Matrix
    """l': part 3 backward on the client and the upload."""
    backward: Matrix
    """p': part 2 backward on the helper, at least 1."""
    tail: Matrix
    """r': the download and part 1 backward on the client."""
    helper_memory: tuple[Real, ...]
    client_memory: tuple[Real, ...]
    """Memory of a client's part 2 on its helper, in the unit of helper_memory."""
    preemptive: Annotated[bool, Strict()]
    """True if a helper may interrupt a task and resume it later."""
    switch_cost: tuple[Whole, ...]
    """[helper], mu: time units added to a client's completion for every start or resume of its tasks."""

    def __post_init__(self) -> None:
        for noun, memory in (("helper", self.helper_memory), ("client", self.client_memory)):
            if not memory:
                raise Refused(f"{noun}_memory: the list is empty; give one number for each {noun}")
            for index, value in enumerate(memory):
                validate_range(f"{noun}_memory of {noun} {index}", value, 0)
        helpers, clients = len(self.helper_memory), len(self.client_memory)
        if helpers * clients > MAX_PAIRS:
            raise Refused(
                f"helper_memory: {helpers} helpers and {clients} clients are more than {MAX_PAIRS} pairs; "
                "give groups of them as problems of their own"
            )
        _validate_length("switch_cost", self.switch_cost, helpers, "number", "helper")
        for index, cost in enumerate(self.switch_cost):
            validate_range(f"switch_cost of helper {index}", cost, 0)
        for field in MATRICES:
            _validate_matrix(field, getattr(self, field), helpers, clients)
        self._validate_limits()

    def _validate_limits(self) -> None:
        """Refuse times whose sums could exceed MAX_TIME; name the field with the largest sum."""
        clients = len(self.client_memory)
        parts = {
            field: sum(max(row[j] or 0 for row in getattr(self, field)) for j in range(clients)) for field in MATRICES
        }
        parts["switch_cost"] = max(self.switch_cost) * (8 * clients)
        if sum(parts.values()) > MAX_TIME:
            worst = max(parts, key=lambda field: parts[field])
            raise Refused(
                f"{worst}: all of it comes to {parts[worst]} time units, more than can be counted with ({MAX_TIME} "
                "for everything together); use a coarser unit"
            )


MATRICES = ("release", "forward", "turnaround_forward", "turnaround_backward", "backward", "tail")
"""Fields of shape [helper][client]."""
WORK = ("forward", "backward")
"""Fields of tasks on the helper: at least one time unit, so that each has a row in the plan."""


def _validate_length(field: str, values: Sequence[object], wanted: int, noun: str, owner: str) -> None:
    """Refuse a number of rows or numbers (`noun`) that differs from the number of helpers or clients (`owner`)."""
    if len(values) != wanted:
        given = plural(len(values), noun)
        raise Refused(f"{field}: {given} for {plural(wanted, owner)}; give one for each, in their order")


def _validate_matrix(field: str, rows: Matrix, helpers: int, clients: int) -> None:
    _validate_length(field, rows, helpers, "row", "helper")
    least = 1 if field in WORK else 0
    for helper, row in enumerate(rows):
        _validate_length(f"{field} of helper {helper}", row, clients, "number", "client")
        for client, value in enumerate(row):
            if value is not None and value < least:
                rule = "a helper's task takes at least one time unit; use a finer unit, or " if least else ""
                raise Refused(
                    f"{field} of helper {helper}, client {client}: {value} is below {least}; {rule}"
                    f"{'null' if least else f'give a whole number of at least {least}, or null'} where there is no link"
                )


Direction = Literal["forward", "backward"]
DIRECTIONS: tuple[Direction, Direction] = ("forward", "backward")
"""Names of `schedule.FORWARD` and `schedule.BACKWARD`."""


@record
class Piece:
    """A client's task, or a part of it between interruptions, on its helper during [start, end)."""

    client: int
    direction: Direction
    start: int
    end: int


@record
class Solution:
    """Assignment and schedule of a problem."""

    kind: Literal["split"] = "split"
    method: str
    feasible: bool = True
    reason: str = ""
    """Always empty: an infeasible problem has no plan."""
    objective: int
    """Makespan, in the problem's time unit."""
    lower_bound: int | None
    """No plan has a shorter makespan."""
    solve_s: float
    deterministic: bool
    """False if a time limit ended the search, so that another run may find another plan."""
    helper: tuple[int, ...]
    """[client]"""
    schedule: tuple[Piece, ...]
    """Ordered by start, then helper."""
    order: tuple[tuple[tuple[int, Direction], ...], ...]
    """[helper], its tasks by first start: an order that can run without a clock."""

    def __post_init__(self) -> None:
        finite("solution", solve_s=self.solve_s)
