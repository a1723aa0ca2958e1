"""Gradients of a group's member in one piece of memory, so that an all-reduce needs no copy of them.

That memory may be on its way to a neighbour until the round is committed: until then only the ring writes to it.
"""

from collections.abc import Mapping

import torch
from torch import nn


class Bucket:
    """One flat tensor that holds every gradient as a view. Behind them lie batch statistics, and a mark for each
    parameter: how many members' loss has reached it."""

    def __init__(self, parameters: Mapping[str, nn.Parameter], statistics: list[torch.Tensor]) -> None:
        self._parameters = [p for p in parameters.values() if p.requires_grad]
        self._statistics = statistics
        tensors = [*self._parameters, *statistics]
        like = tensors[0] if tensors else torch.zeros(1)
        sizes = [*(t.numel() for t in tensors), len(self._parameters)]
        self.flat = torch.zeros(max(1, sum(sizes)), dtype=like.dtype, device=like.device)
        *pieces, self._marks = self.flat.narrow(0, 0, sum(sizes)).split(sizes)
        self._views = [piece.view_as(t) for piece, t in zip(pieces, tensors, strict=True)]
        self._reached: set[int] = set()
        for number, parameter in enumerate(self._parameters):
            parameter.register_post_accumulate_grad_hook(lambda _, number=number: self._reached.add(number))

    def start(self) -> None:
        """Let a round's gradients gather in the bucket."""
        self.flat.zero_()
        self._reached.clear()
        for parameter, view in zip(self._parameters, self._views, strict=False):
            parameter.grad = view

    def put(self, weight: float) -> None:
        """Put in what else is added up: marks, and this member's batch statistics by its share of the samples."""
        for number in self._reached:
            self._marks[number] = 1
        for statistic, view in zip(self._statistics, self._views[len(self._parameters) :], strict=True):
            torch.mul(statistic, weight, out=view)

    def take(self) -> None:
        """Take up the group's statistics; a parameter that nobody's loss has reached has no gradient."""
        for statistic, view in zip(self._statistics, self._views[len(self._parameters) :], strict=True):
            statistic.copy_(view)
        for parameter, mark in zip(self._parameters, self._marks.tolist(), strict=True):
            if not mark:
                parameter.grad = None
