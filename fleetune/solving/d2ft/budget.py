"""What a subnet may spend, in whole numbers: every comparison of costs with capacities is exact."""

from collections.abc import Sequence
from typing import NamedTuple

from fleetune.solving.d2ft.exact import scaled

Cost = int | tuple[int, ...]
"""Of every micro-batch alike, or of each."""


class Budget(NamedTuple):
    """Costs and capacities of one subnet, all times the same power of ten."""

    full_cost: Cost
    """Forward and backward of a micro-batch."""
    forward_cost: Cost
    full_capacity: int
    forward_capacity: int
    capacity: int | None = None
    """Of both operations together, for `joint`."""

    @classmethod
    def of(
        cls,
        forward_cost: float | Sequence[float],
        backward_cost: float | Sequence[float],
        full_capacity: float,
        forward_capacity: float,
        capacity: float | None = None,
    ) -> "Budget":
        """From numbers of any unit, at least 0; costs of each micro-batch where they differ, in length say."""
        forward, backward = _listed(forward_cost), _listed(backward_cost)
        count = max(len(forward), len(backward))
        costs = [*forward * (count // len(forward)), *backward * (count // len(backward))]
        whole = scaled([*costs, full_capacity, forward_capacity, capacity or 0.0])
        ahead, back, (full, only, both) = whole[:count], whole[count:-3], whole[-3:]
        full_costs = [f + b for f, b in zip(ahead, back, strict=True)]
        return cls(_simple(full_costs), _simple(ahead), full, only, None if capacity is None else both)

    @property
    def alike(self) -> bool:
        """Whether all micro-batches cost the same."""
        return isinstance(self.full_cost, int) and isinstance(self.forward_cost, int)


def fitting(cost: int, capacity: int, most: int) -> int:
    """How many of equal cost fit, at most `most`; what costs nothing always fits."""
    return most if cost == 0 else min(most, capacity // cost)


def spent(cost: Cost, chosen: Sequence[bool]) -> int:
    """What the chosen micro-batches cost together."""
    if isinstance(cost, int):
        return cost * sum(chosen)
    return sum(one for one, taken in zip(cost, chosen, strict=True) if taken)


def _listed(cost: float | Sequence[float]) -> list[float]:
    return list(cost) if isinstance(cost, Sequence) else [cost]


def _simple(costs: list[int]) -> Cost:
    return costs[0] if min(costs) == max(costs) else tuple(costs)
