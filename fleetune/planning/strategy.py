"""The interface of a strategy."""

from typing import Protocol

from fleetune.contracts.plan import PlanResult
from fleetune.planning.problem import Problem


class Strategy(Protocol):
    """A planning method. Pure: the same problem gives the same plan, without time, randomness, files or devices.

    Options are plain values in `problem.options`. The strategy parses them with `json_io.load` into its own record, so
    that an unknown option is refused by name with the list of known ones.
    """

    @property
    def name(self) -> str:
        """Name in run files, in lower case."""

    @property
    def citation(self) -> str:
        """BibTeX of the paper that the strategy follows; entries are separated by empty lines."""

    @property
    def summary(self) -> str:
        """One line for a list of strategies."""

    @property
    def options(self) -> type:
        """The record type of its options."""

    @property
    def methods(self) -> dict[str, str]:
        """option -> kind of problem whose methods are its allowed values."""

    def supports(self, problem: Problem) -> str:
        """One sentence with the reason why the strategy cannot solve the problem; empty if it can."""

    def plan(self, problem: Problem) -> PlanResult:
        """Solve the problem; the caller fills in `solve_s`.

        Raises Infeasible, naming the binding constraint, if no plan of this strategy satisfies the problem, and Refused
        for malformed options.
        """
