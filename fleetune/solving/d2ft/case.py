"""A problem as its solvers read it: scores in arrays, budgets in whole numbers, operations as a table."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from fleetune.solving.d2ft.budget import Budget, fitting
from fleetune.solving.d2ft.problem import Problem
from fleetune.solving.proofs import Floats

FULL, FORWARD_ONLY, SHORTCUT = 1, 2, 3
"""Operations in a table, as the paper numbers them (Algorithm 1)."""

Bools = NDArray[np.bool_]
Ints = NDArray[np.int64]
Table = NDArray[np.int64]
"""[subnet, micro-batch] of operations."""


@dataclass(frozen=True)
class Case:
    """Scores [subnet, micro-batch] and the budget of every subnet."""

    backward: Floats
    forward: Floats
    budgets: tuple[Budget, ...]

    @classmethod
    def of(cls, problem: Problem) -> "Case":
        """From a proven problem."""
        capacities: tuple[float | None, ...] = problem.capacity or (None,) * len(problem.forward_cost)
        costs = zip(problem.forward_cost, problem.backward_cost, strict=True)
        rooms = zip(problem.full_capacity, problem.forward_capacity, capacities, strict=True)
        rows = [(*pair, *room) for pair, room in zip(costs, rooms, strict=True)]
        made = {row: Budget.of(*row) for row in set(rows)}  # alike as a rule, and each takes a while
        budgets = tuple(made[row] for row in rows)
        return cls(np.array(problem.backward_scores), np.array(problem.forward_scores), budgets)

    @property
    def subnets(self) -> int:
        """How many."""
        return int(self.backward.shape[0])

    @property
    def micro_batches(self) -> int:
        """How many."""
        return int(self.backward.shape[1])

    @cached_property
    def fulls(self) -> Ints:
        """[subnet]: how many micro-batches its full_capacity trains; 0 where their costs differ."""
        return self._fitting("full")

    @cached_property
    def forwards(self) -> Ints:
        """[subnet]: how many micro-batches its forward_capacity runs forward; 0 where their costs differ."""
        return self._fitting("forward")

    def _fitting(self, what: str) -> Ints:
        pairs = [(getattr(one, f"{what}_cost"), getattr(one, f"{what}_capacity")) for one in self.budgets]
        return np.array(
            [fitting(cost, room, self.micro_batches) if isinstance(cost, int) else 0 for cost, room in pairs]
        )


def merged(full: Bools, forward: Bools) -> Table:
    """Operations as a table; where both were chosen, full wins (Algorithm 1)."""
    return np.where(full, FULL, np.where(forward, FORWARD_ONLY, SHORTCUT))
