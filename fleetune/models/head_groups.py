"""Groups of a block's heads in one micro-batch: those that run in full, and those that run forward only.

A forward-only group runs without gradients, and what it adds to the residual stream is a constant to autograd. Skipped
heads are in no group. Each group draws its random numbers from a seed of its own.
"""

import contextlib
import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from fleetune.contracts.plan import FORWARD_ONLY, FULL
from fleetune.models.graph import RandomDraw
from fleetune.models.narrow_dense import Heads, NarrowLayer


class HeadGroup(NamedTuple):
    """Heads that run together."""

    name: str
    heads: Heads
    is_full: bool

    def gradients(self) -> Any:
        """Return the context in which they run."""
        return contextlib.nullcontext() if self.is_full else torch.no_grad()


@dataclasses.dataclass(frozen=True, slots=True)
class GateTable:
    """Operations of a block's heads: for each head, one digit per micro-batch, as in a plan's gates."""

    rows: tuple[str, ...]

    @property
    def micro_batches(self) -> int:
        """Number of micro-batches."""
        return len(self.rows[0])

    def is_gated(self, micro_batch: int) -> bool:
        """Return True if some head is not full in a micro-batch."""
        return any(row[micro_batch] != FULL for row in self.rows)

    def groups(self, micro_batch: int) -> tuple[HeadGroup, ...]:
        """Return the groups that run in a micro-batch, full heads first; none is empty."""
        found: list[HeadGroup] = []
        for name, operation in (("full", FULL), ("forward-only", FORWARD_ONLY)):
            heads = tuple(head for head, row in enumerate(self.rows) if row[micro_batch] == operation)
            found += [HeadGroup(name, heads, operation == FULL)] if heads else []
        return tuple(found)

    def sizes(self) -> set[int]:
        """Return every number of heads that a group has in some gated micro-batch."""
        gated = [number for number in range(self.micro_batches) if self.is_gated(number)]
        return {len(group.heads) for number in gated for group in self.groups(number)}


def with_last_size(draws: tuple[RandomDraw, ...], size: int) -> tuple[RandomDraw, ...]:
    """Return draws whose last dimension, that of features, has another size."""
    return tuple(dataclasses.replace(draw, shape=(*draw.shape[:-1], str(size))) for draw in draws)


Contribution = Callable[[HeadGroup, torch.Tensor | None], torch.Tensor]


def sum_of_groups(
    outer: NarrowLayer, groups: tuple[HeadGroup, ...], like: torch.Tensor, contribution: Contribution
) -> torch.Tensor:
    """Return what all groups add to the residual stream, with the layer's bias once.

    like: a tensor with the other dimensions of the result. contribution: runs a group; it is given the bias to add.
    """
    total: torch.Tensor | None = None
    for group in groups:
        with group.gradients():
            part = contribution(group, outer.base.bias if group.is_full else None)
        total = part if total is None else total.add_(part)
    if total is None:
        total = like.new_zeros((*like.shape[:-1], outer.output_size))
    bias_was_added = any(group.is_full for group in groups) or outer.base.bias is None
    return total if bias_was_added else total + outer.base.bias
