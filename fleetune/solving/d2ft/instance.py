"""A problem as arrays of scores and budgets in integers, so that costs and capacities compare exactly.

Decimals count as written: 3 x 0.1 fits into 0.3, though no binary fraction is 0.1.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fleetune.arrays import Bools, Floats, Ints
from fleetune.solving.d2ft.problem import Problem

Cost = int | tuple[int, ...]
"""One cost for all micro-batches, or one for each."""


class Budget(NamedTuple):
    """Costs and capacities of one subnet, all scaled by the same power of ten."""

    full_cost: Cost
    """Forward and backward of a micro-batch."""
    forward_cost: Cost
    full_capacity: int
    forward_capacity: int
    capacity: int | None = None
    """For both operations together, used by `joint`."""

    @classmethod
    def from_costs(
        cls,
        forward_cost: float | Sequence[float],
        backward_cost: float | Sequence[float],
        full_capacity: float,
        forward_capacity: float,
        capacity: float | None = None,
    ) -> "Budget":
        """Scale numbers of any unit, at least 0, to integers. Costs: one number, or one per micro-batch."""
        forward, backward = _as_list(forward_cost), _as_list(backward_cost)
        count = max(len(forward), len(backward))
        costs = [*forward * (count // len(forward)), *backward * (count // len(backward))]
        whole = to_integers([*costs, full_capacity, forward_capacity, capacity or 0.0])
        ahead, back, (full, only, both) = whole[:count], whole[count:-3], whole[-3:]
        full_costs = [f + b for f, b in zip(ahead, back, strict=True)]
        return cls(_collapsed(full_costs), _collapsed(ahead), full, only, None if capacity is None else both)

    @property
    def uniform(self) -> bool:
        """True if all micro-batches cost the same."""
        return isinstance(self.full_cost, int) and isinstance(self.forward_cost, int)


def max_count(cost: int, capacity: int, most: int) -> int:
    """Return how many items of equal cost fit, at most `most`; items of cost 0 always fit."""
    return most if cost == 0 else min(most, capacity // cost)


def total_cost(cost: Cost, chosen: Sequence[bool]) -> int:
    """Return the cost of the chosen micro-batches."""
    if isinstance(cost, int):
        return cost * sum(chosen)
    return sum(one for one, taken in zip(cost, chosen, strict=True) if taken)


def _as_list(cost: float | Sequence[float]) -> list[float]:
    return list(cost) if isinstance(cost, Sequence) else [cost]


def _collapsed(costs: list[int]) -> Cost:
    return costs[0] if min(costs) == max(costs) else tuple(costs)


def to_integers(values: Iterable[float]) -> list[int]:
    """Multiply finite numbers by the smallest power of ten that makes their shortest decimals integers."""
    decimals = [Decimal(repr(float(value))).as_tuple() for value in values]
    lowest = min((int(exponent) for _, _, exponent in decimals), default=0)
    return [
        (-1) ** sign * int("".join(map(str, digits))) * 10 ** (int(exponent) - lowest)
        for sign, digits, exponent in decimals
    ]


FULL, FORWARD_ONLY, SHORTCUT = 1, 2, 3
"""Operations in a table, numbered as in the paper (Algorithm 1)."""

Table = NDArray[np.int64]
"""[subnet, micro-batch], operations."""


@dataclass(frozen=True)
class Instance:
    """Scores [subnet, micro-batch] and the budget of every subnet."""

    backward: Floats
    forward: Floats
    budgets: tuple[Budget, ...]

    @classmethod
    def from_problem(cls, problem: Problem) -> "Instance":
        """Convert a validated problem."""
        capacities: tuple[float | None, ...] = problem.capacity or (None,) * len(problem.forward_cost)
        costs = zip(problem.forward_cost, problem.backward_cost, strict=True)
        capacity_rows = zip(problem.full_capacity, problem.forward_capacity, capacities, strict=True)
        rows = [(*pair, *room) for pair, room in zip(costs, capacity_rows, strict=True)]
        made = {row: Budget.from_costs(*row) for row in set(rows)}  # most rows are equal, and each takes a while
        budgets = tuple(made[row] for row in rows)
        return cls(np.array(problem.backward_scores), np.array(problem.forward_scores), budgets)

    @property
    def subnets(self) -> int:
        """Number of subnets."""
        return int(self.backward.shape[0])

    @property
    def micro_batches(self) -> int:
        """Number of micro-batches."""
        return int(self.backward.shape[1])

    @cached_property
    def full_counts(self) -> Ints:
        """[subnet], micro-batches that full_capacity can train; 0 where their costs differ."""
        return self._fitting("full")

    @cached_property
    def forward_counts(self) -> Ints:
        """[subnet], micro-batches that forward_capacity can run forward; 0 where their costs differ."""
        return self._fitting("forward")

    def _fitting(self, what: str) -> Ints:
        pairs = [(getattr(one, f"{what}_cost"), getattr(one, f"{what}_capacity")) for one in self.budgets]
        return np.array(
            [max_count(cost, room, self.micro_batches) if isinstance(cost, int) else 0 for cost, room in pairs]
        )


def to_table(full: Bools, forward: Bools) -> Table:
    """Return the table of operations; full wins where both were chosen (Algorithm 1)."""
    return np.where(full, FULL, np.where(forward, FORWARD_ONLY, SHORTCUT))
