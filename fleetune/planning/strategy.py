"""What every strategy answers."""

from typing import Protocol

from fleetune.contracts.plan import PlanResult
from fleetune.planning.problem import Problem


class Strategy(Protocol):
    """A way to plan. Pure: same problem, same answer; time, chance, files and devices are none of its business.

    Options come as plain values in `problem.options`; the strategy parses them with `wire.load` into a record of its
    own, so that an unknown one is refused by name and with the list of those it has.
    """

    @property
    def name(self) -> str:
        """How it is asked for, in lower case."""

    @property
    def citation(self) -> str:
        """The paper it follows, as BibTeX or in one line."""

    @property
    def summary(self) -> str:
        """One line for a list of strategies."""

    @property
    def options(self) -> type:
        """The record that its options are parsed into."""

    @property
    def methods(self) -> dict[str, str]:
        """option -> the kind of problem whose methods it names."""

    def supports(self, problem: Problem) -> str:
        """Empty, or one sentence that says why this strategy cannot help with the problem."""

    def plan(self, problem: Problem) -> PlanResult:
        """The plan; `solve_s` is filled in by the caller.

        Raises Infeasible where no plan of this strategy satisfies the problem, naming the binding constraint, and
        Refused where options are malformed.
        """
