"""Scores of heads from the gradients of an ordinary round, in which all of them run in full (D2FT).

Each micro-batch's gradient is needed by itself, and the round's optimizer step needs the sum. So what earlier
micro-batches have left is set aside while one runs backward, and added to again: the same additions as without scores,
in the same order, for one more copy of the gradients. In a group that shares samples, a micro-batch's gradient is the
sum over its members, which a ring adds up for each micro-batch.
"""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from fleetune.contracts.head_scores import HeadScores
from fleetune.models.attention_heads import AttentionHead
from fleetune.models.head_scores import ScoreAccumulator
from fleetune.training.seat import TrainingSeat

SumOverGroup = Callable[[int, torch.Tensor], None]
"""(Micro-batch, flat tensor) -> its sum over the seat's group, in place."""


class SeatScorer:
    """Scores the heads whose weights a seat holds, or the parts of them, over the micro-batches of one round."""

    def __init__(
        self, seat: TrainingSeat, heads: tuple[AttentionHead, ...], loss_scale: float, sum_over_group: SumOverGroup
    ) -> None:
        """heads: of the whole model. loss_scale: what gradients are multiplied by."""
        self._seat, self._loss_scale, self._sum_over_group = seat, loss_scale, sum_over_group
        self._accumulator = ScoreAccumulator(heads, seat.runner.parameters)
        self._scored = self._accumulator.trained

    def scores(self) -> tuple[HeadScores, ...]:
        """Return the scores, over the micro-batches that ran backward; the first member of a group tells them.

        Empty where gradients have overflowed: they are no numbers.
        """
        found = self._accumulator.scores() if self._seat.seat.is_leader else ()
        return found if all(math.isfinite(sum(each.fisher)) for each in found) else ()

    @contextmanager
    def scoring(self, micro_batch: int) -> Iterator[None]:
        """Score what the backward of one micro-batch leaves as gradients."""
        aside = {name: self._set_aside(parameter) for name, parameter in self._scored.items()}
        yield
        self._accumulator.add(micro_batch, self._of_group(micro_batch) if self._scored else {}, self._loss_scale)
        for name, parameter in self._scored.items():
            before = aside.pop(name)
            if before is None:
                continue
            if parameter.grad is None:
                parameter.grad = before
            elif self._seat.bucket is not None:
                parameter.grad.add_(before)  # a view of the bucket
            else:
                parameter.grad = before.add_(parameter.grad)

    def _set_aside(self, parameter: torch.nn.Parameter) -> torch.Tensor | None:
        """Return a parameter's gradient so far, and let the next one begin from nothing."""
        before = parameter.grad
        if self._seat.bucket is None:
            parameter.grad = None
            return before
        assert before is not None, "gradients of a group lie in its bucket"
        kept = before.clone()
        before.zero_()
        return kept

    def _of_group(self, micro_batch: int) -> dict[str, torch.Tensor]:
        """Return the micro-batch's gradients by name, summed over the group."""
        found = {n: torch.zeros_like(p) if p.grad is None else p.grad for n, p in self._scored.items()}
        if self._seat.bucket is None:
            return found
        flat = torch.cat([gradient.reshape(-1) for gradient in found.values()])
        self._sum_over_group(micro_batch, flat)
        parts = flat.split([gradient.numel() for gradient in found.values()])
        return {name: part.view_as(found[name]) for name, part in zip(found, parts, strict=True)}
