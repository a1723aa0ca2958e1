"""Input and output of a method."""

from collections.abc import Sequence
from typing import NamedTuple

from fleetune.solving.split.schedule import Row


class SearchOptions(NamedTuple):
    """Seed and limits of a search."""

    seed: int = 0
    time_limit_s: float | None = None
    """None: a fixed amount of work."""
    placed: Sequence[int] | None = None
    """[client], a known assignment that fits; finding one can be hard."""


class Candidate(NamedTuple):
    """A schedule and its assignment."""

    helper: Sequence[int]
    """[client]"""
    rows: list[Row]
    lower_bound: int | None = None
    """Proven bound on the makespan of every plan; None if the method proves none."""
    deterministic: bool = True
