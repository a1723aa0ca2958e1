"""Interface that each kind of problem implements."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol


class Solved(Protocol):
    """Fields of every plan record. The plan of a maximised objective has `upper_bound`."""

    @property
    def kind(self) -> str:
        """Kind of the problem."""

    @property
    def method(self) -> str:
        """Method that made the plan."""

    @property
    def feasible(self) -> bool:
        """False if a method that ignores a constraint violated it; `reason` says which."""

    @property
    def reason(self) -> str:
        """Empty unless infeasible."""

    @property
    def objective(self) -> float:
        """Value that was minimised or maximised."""

    @property
    def solve_s(self) -> float:
        """Solution time in seconds."""


class Solve(Protocol):
    """Solver of a kind."""

    def __call__(self, problem: Any, *, method: str, time_limit_s: float | None, seed: int) -> Solved:
        """Return a plan by one of the kind's methods; Infeasible names the binding constraint."""


class Kind(NamedTuple):
    """One kind of problem. Construction imports no solver; `solve` may."""

    name: str
    summary: str
    """One line."""
    objective: str
    """Name of the objective: `round`, `latency`, `makespan`."""
    unit: str
    """Unit of the objective; `s` is shown in readable seconds, anything else as a number and the unit."""
    parse: Callable[[Any, str], Any]
    """(JSON values, name for messages) -> validated problem; raises Refused."""
    methods: Mapping[str, str]
    """Method -> summary in one line; the first method is the default."""
    solve: Solve
    in_short: Callable[[Any], str]
    """Summarise a plan: `3 stages: nano-0+nano-1 | tx2 | nx`."""
    default: Callable[[Any], str] | None = None
    """problem -> default method, if it is not always the first."""
