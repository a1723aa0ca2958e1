"""What a kind of problem must bring to be solved through the door."""

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol


class Solved(Protocol):
    """A plan record of any kind: what the contract has every plan echo. A maximised objective has `upper_bound`."""

    @property
    def kind(self) -> str:
        """Of the problem."""

    @property
    def method(self) -> str:
        """That made it."""

    @property
    def feasible(self) -> bool:
        """False: a method that ignores a constraint broke it, and `reason` says which."""

    @property
    def reason(self) -> str:
        """Empty unless infeasible."""

    @property
    def objective(self) -> float:
        """What was minimised or maximised."""

    @property
    def solve_s(self) -> float:
        """Seconds it took."""


class Solve(Protocol):
    """The solver of a kind."""

    def __call__(self, problem: Any, *, method: str, time_limit_s: float | None, seed: int) -> Solved:
        """A plan by one of the kind's methods; Infeasible names the binding constraint."""


class Kind(NamedTuple):
    """One kind of problem. Making one imports no solver: only `methods` and `solve` may."""

    name: str
    summary: str
    """One line."""
    objective: str
    """What the number is: `round`, `latency`, `makespan`."""
    unit: str
    """Of the objective; `s` is shown in readable seconds, anything else as a number and the unit."""
    parse: Callable[[Any, str], Any]
    """Plain JSON values and what to call them -> a proven problem; Refused."""
    methods: Callable[[], dict[str, str]]
    """One line each; the first is the default."""
    solve: Solve
    in_short: Callable[[Any], str]
    """What a plan decided, in a few words: `3 stages: nano-0+nano-1 | tx2 | nx`."""
    default: Callable[[Any], str] | None = None
    """The method for a problem where it is not always the first."""
