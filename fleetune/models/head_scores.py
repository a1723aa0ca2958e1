"""Importance scores of attention heads from the gradients of micro-batches.

Fisher information (D2FT eq. (2)) is the sum of squared gradients of a micro-batch's contribution to the round's loss:
its loss summed over targets, divided by the number of targets in the whole batch. Gradients are those of trained
weights (with LoRA the adapters, as in D2FT §II-D); weight magnitude (eq. (3)) counts all weights of a head: adapters
are zero at the start of training. Sums are in double precision.
"""

import dataclasses
from collections.abc import Mapping

import torch
from torch import nn

from fleetune.contracts.head_scores import HeadScores
from fleetune.models.attention_heads import AttentionHead, DenseLayer, TransformerBlock
from fleetune.models.nf4 import PACKED, unpack

CHUNK_ELEMENTS = 1 << 16
"""Elements that are held in double precision at once."""


class ScoreAccumulator:
    """Accumulates scores over micro-batches."""

    def __init__(self, heads: tuple[AttentionHead, ...], parameters: Mapping[str, nn.Parameter]) -> None:
        """`parameters`: those of the whole model, or of a part of it, by canonical name. Of a head that a cut divides,
        only what lies among them is scored.
        """
        self._heads = held_parts(heads, parameters)
        self.trained = {name: parameters[name] for name in trained_parameters(self._heads, parameters)}
        """Parameters whose gradients count, by name."""
        self._owners = owners_of(self._heads)
        shapes = {layer.weight: layer.shape for head in self._heads for layer in packed_layers(head.block, parameters)}
        magnitudes = torch.zeros(len(self._heads), dtype=torch.float64)
        with torch.no_grad():
            for name in self._owners:
                weight = parameters[name]
                held = unpack(weight, shapes[name], torch.float32) if name in shapes else weight
                magnitudes += self._totals({name: held})[0]
        self._magnitudes: list[float] = magnitudes.tolist()
        self._gradients = [0.0] * len(self._heads)
        self._fisher: dict[int, list[float]] = {}

    def add_loss(self, micro_batch: int, loss: torch.Tensor, scale: float = 1.0) -> None:
        """Add the gradients of one micro-batch's loss, which reaches all heads.

        scale: what the loss is multiplied by before its backward, as in training; halved while gradients overflow.
        """
        while True:
            last = scale <= 1.0
            trained = list(self.trained.values())
            made = torch.autograd.grad(loss * scale, trained, materialize_grads=True, retain_graph=not last)
            if last or all(bool(gradient.isfinite().all()) for gradient in made):
                return self.add(micro_batch, dict(zip(self.trained, made, strict=True)), scale)
            scale /= 2

    def add(self, micro_batch: int, gradients: Mapping[str, torch.Tensor], scale: float = 1.0) -> None:
        """Add the gradients of one micro-batch, by name of the parameter; they are `scale` times those of its loss."""
        magnitudes, squares = self._totals(gradients).tolist()
        self._gradients = [sum(both) for both in zip(self._gradients, (one / scale for one in magnitudes), strict=True)]
        self._fisher[micro_batch] = [square / scale**2 for square in squares]

    def scores(self) -> tuple[HeadScores, ...]:
        """Scores over all micro-batches so far, in their order."""
        fisher = [self._fisher[number] for number in sorted(self._fisher)]
        return tuple(
            HeadScores(
                name=head.name,
                weight_magnitude=self._magnitudes[at],
                gradient_magnitude=self._gradients[at],
                fisher=tuple(row[at] for row in fisher),
            )
            for at, head in enumerate(self._heads)
        )

    def _totals(self, tensors: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """Return [2, head], on the CPU: each head's sums of magnitudes and of squares over its parts of the tensors."""
        total = torch.zeros(2, len(self._heads) + 1, dtype=torch.float64)
        for name, tensor in tensors.items():
            dim, owners = self._owners[name]
            total.index_add_(1, owners, sums_along(tensor, dim).cpu())
        return total[:, :-1]


Owners = tuple[int, torch.Tensor]
"""A dimension of a parameter, and [index] the number of the head that owns it, or the number of heads for none."""


def owners_of(heads: tuple[AttentionHead, ...]) -> dict[str, Owners]:
    """Return parameter -> whose its rows or columns are. Every parameter is divided along one dimension."""
    ends: dict[str, list[tuple[int, int, int, int]]] = {}
    for at, head in enumerate(heads):
        for piece in head.slices:
            ends.setdefault(piece.parameter, []).append((piece.dim, piece.first, piece.end, at))
    found = {}
    for name, pieces in ends.items():
        (dim,) = {dim for dim, *_ in pieces}
        owners = torch.full((max(end for _, _, end, _ in pieces),), len(heads))
        for _, first, end, at in pieces:
            owners[first:end] = at
        found[name] = (dim, owners)
    return found


def sums_along(tensor: torch.Tensor, dim: int) -> torch.Tensor:
    """Return [2, size of dim] sums of magnitudes and of squares over all other dimensions, in double precision."""
    moved = tensor.detach().movedim(dim, 0)
    rows = max(1, CHUNK_ELEMENTS * len(moved) // max(1, moved.numel()))
    parts = (part.double().reshape(len(part), -1) for part in moved.split(rows))
    return torch.cat([torch.stack([part.abs().sum(1), part.square().sum(1)]) for part in parts], dim=1)


def held_parts(heads: tuple[AttentionHead, ...], parameters: Mapping[str, nn.Parameter]) -> tuple[AttentionHead, ...]:
    """Return the heads that have weights among these parameters, with these weights only."""
    own = (
        dataclasses.replace(head, slices=tuple(piece for piece in head.slices if piece.parameter in parameters))
        for head in heads
    )
    return tuple(head for head in own if head.slices)


def trained_parameters(heads: tuple[AttentionHead, ...], parameters: Mapping[str, nn.Parameter]) -> tuple[str, ...]:
    """Names of trained parameters that belong to some head, at least in part."""
    names = dict.fromkeys(piece.parameter for head in heads for piece in head.slices)
    return tuple(name for name in names if parameters[name].requires_grad)


def packed_layers(block: TransformerBlock, parameters: Mapping[str, nn.Parameter]) -> list[DenseLayer]:
    """Return the block's dense layers whose weights are among these parameters, packed in 4 bits."""
    layers = (layer for half in (block.attention, block.feed_forward) for layer in half.layers)
    return [layer for layer in layers if layer.weight in parameters and parameters[layer.weight].dtype == PACKED]
