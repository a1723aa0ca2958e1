"""Gradients of a group's member in one piece of memory, so that an all-reduce needs no copy of them.

That memory may be on its way to a neighbour until the round is committed: until then only the ring writes to it.
"""

from collections.abc import Mapping

import torch
from torch import nn


class Bucket:
    """One flat tensor that holds every gradient as a view, and room for batch statistics behind them."""

    def __init__(self, parameters: Mapping[str, nn.Parameter], statistics: list[torch.Tensor]) -> None:
        self._parameters = [p for p in parameters.values() if p.requires_grad]
        self._statistics = statistics
        tensors = [*self._parameters, *statistics]
        like = tensors[0] if tensors else torch.zeros(1)
        self.flat = torch.zeros(max(1, sum(t.numel() for t in tensors)), dtype=like.dtype, device=like.device)
        pieces = self.flat.split([t.numel() for t in tensors]) if tensors else ()
        self._views = [piece.view_as(t) for piece, t in zip(pieces, tensors, strict=True)]

    def start(self) -> None:
        """Let a round's gradients gather in the bucket."""
        self.flat.zero_()
        for parameter, view in zip(self._parameters, self._views, strict=False):
            parameter.grad = view

    def put_statistics(self, weight: float) -> None:
        """Put this member's batch statistics in, by its share of the samples."""
        for statistic, view in zip(self._statistics, self._views[len(self._parameters) :], strict=True):
            torch.mul(statistic, weight, out=view)

    def take_statistics(self) -> None:
        """Take up the group's statistics."""
        for statistic, view in zip(self._statistics, self._views[len(self._parameters) :], strict=True):
            statistic.copy_(view)
