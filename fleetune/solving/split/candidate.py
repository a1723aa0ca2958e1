"""What goes into a method and what comes out, before it is judged and shown."""

from collections.abc import Sequence
from typing import NamedTuple

from fleetune.solving.split.schedule import Row


class SearchOptions(NamedTuple):
    """How hard, and from which seed, to search."""

    seed: int = 0
    time_limit_s: float | None = None
    """None: a fixed amount of work."""
    placed: Sequence[int] | None = None
    """Some helper for each client so that all fit, where that is known; finding one can be hard."""


class Candidate(NamedTuple):
    """A schedule with the assignment it keeps to."""

    helper: Sequence[int]
    """Of each client."""
    rows: list[Row]
    lower_bound: int | None = None
    """Of the makespan of every plan, where the method proves one."""
    deterministic: bool = True
