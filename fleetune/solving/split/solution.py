"""A plan of kind "split": the contract's JSON, key for key."""

from typing import Literal

from fleetune.contracts.record import finite, record

Direction = Literal["forward", "backward"]
DIRECTIONS: tuple[Direction, Direction] = ("forward", "backward")
"""Their names, by `schedule.FORWARD` and `schedule.BACKWARD`."""


@record
class Piece:
    """A client's task, or a part of it between interruptions, on its helper during [start, end)."""

    client: int
    direction: Direction
    start: int
    end: int


@record
class Solution:
    """Who helps whom and when, and when all is done."""

    kind: Literal["split"] = "split"
    method: str
    feasible: bool = True
    reason: str = ""
    """Always empty: an infeasible problem has no plan."""
    objective: int
    """The makespan, in the problem's time unit."""
    lower_bound: int | None
    """No plan has a shorter makespan."""
    solve_s: float
    deterministic: bool
    """False: another run may find another plan, since a clock ended the search."""
    helper: tuple[int, ...]
    """Of each client."""
    schedule: tuple[Piece, ...]
    """By start, then helper."""
    order: tuple[tuple[tuple[int, Direction], ...], ...]
    """Of each helper: its tasks by first start, for running them one after another without a clock."""

    def __post_init__(self) -> None:
        finite("solution", solve_s=self.solve_s)
