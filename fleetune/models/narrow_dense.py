"""Dense layers of which only some attention heads' outputs, or inputs, are computed.

The weights of the chosen heads are gathered, so that a layer costs as much as they are wide; nothing is multiplied by a
mask. Gathering is part of the autograd graph: gradients arrive at the rows and columns of the whole weight, and those
of other heads are zero.
"""

import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn import functional
from transformers.pytorch_utils import Conv1D

from fleetune.errors import Refused
from fleetune.models.attention_heads import DenseLayer, HalfBlock, split_evenly
from fleetune.models.compute_copies import master_of
from fleetune.models.nf4 import unpacked_for_now

Heads = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class HeadDivision:
    """How a dimension is divided among heads: `stretches` of equal width, each dealt to all heads in order.

    Queries, keys and values that one layer makes are three stretches; every other layer has one.
    """

    heads: int
    stretches: int
    width: int
    """Width of one stretch."""

    @property
    def size(self) -> int:
        """Size of the whole dimension."""
        return self.stretches * self.width

    @functools.lru_cache(maxsize=4096)  # noqa: B019 - a small record that lives as long as its table
    def spans(self, heads: Heads) -> tuple[tuple[int, int], ...]:
        """Return the half-open ranges [first, end) of these heads, in order; adjacent ones are joined."""
        parts = split_evenly(self.width, self.heads)
        found: list[tuple[int, int]] = []
        for stretch in range(self.stretches):
            for head in heads:
                first, end = (stretch * self.width + edge for edge in parts[head])
                if found and found[-1][1] == first:
                    first, _ = found.pop()[0], end
                found.append((first, end))
        return tuple(found)

    def size_of(self, heads: Heads) -> int:
        """Return the size of the part that these heads own."""
        return sum(end - first for first, end in self.spans(heads))

    def select(self, tensor: torch.Tensor, dim: int, heads: Heads, out: torch.Tensor | None = None) -> torch.Tensor:
        """Return the part of `tensor` that these heads own in dimension `dim`, a view where that is possible.

        out: a tensor that it is written into, where no gradients are recorded.
        """
        spans = self.spans(heads)
        if len(spans) == 1:
            first, end = spans[0]
            part = tensor if end - first == self.size else tensor.narrow(dim, first, end - first)
            return part if out is None else out.copy_(part)
        if self.width % self.heads:
            return torch.index_select(tensor, dim, _positions(spans, tensor.device), out=out)
        each = self.width // self.heads  # whole heads are copied, which is several times faster than single positions
        shape = (self.stretches, len(heads), each)
        split = tensor.unflatten(dim, (self.stretches, self.heads, each))
        into = None if out is None else out.unflatten(dim, shape)
        if heads == tuple(range(heads[0], heads[-1] + 1)):  # as in recordings: no tensor of numbers is made there
            part = split.narrow(dim + 1, heads[0], len(heads))
            return (part if into is None else into.copy_(part)).flatten(dim, dim + 2)
        return torch.index_select(split, dim + 1, _numbers(heads, tensor.device), out=into).flatten(dim, dim + 2)

    def scattered(self, part: torch.Tensor, dim: int, heads: Heads) -> torch.Tensor:
        """Return a tensor of the whole dimension: `part`, as `select` returns it, in its place, and zeros elsewhere."""
        shape = list(part.shape)
        shape[dim] = self.size
        whole = part.new_zeros(shape)
        spans = self.spans(heads)
        if len(spans) == 1:
            first, end = spans[0]
            whole.narrow(dim, first, end - first).copy_(part)
        elif self.width % self.heads:
            whole.index_copy_(dim, _positions(spans, part.device), part)
        else:
            each = self.width // self.heads
            split = whole.unflatten(dim, (self.stretches, self.heads, each))
            chosen = part.unflatten(dim, (self.stretches, len(heads), each))
            split.index_copy_(dim + 1, _numbers(heads, part.device), chosen)
        return whole

    def add_into(self, whole: torch.Tensor, part: torch.Tensor, dim: int, heads: Heads) -> None:
        """Add `part`, as `select` returns it, to its place in a tensor of the whole dimension."""
        taken = 0
        for first, end in self.spans(heads):
            whole.narrow(dim, first, end - first).add_(part.narrow(dim, taken, end - first))
            taken += end - first

    def spread(self, parts: list[tuple[Heads, torch.Tensor]], like: torch.Tensor) -> torch.Tensor:
        """Return a tensor of the whole dimension, the last one: each part at its heads' place, zeros elsewhere.

        parts: heads, with a tensor as `select` returns it. like: has the other dimensions, dtype and device.
        """
        pieces: list[tuple[int, torch.Tensor]] = []
        for heads, part in parts:
            taken = 0
            for first, end in self.spans(heads):
                pieces.append((first, part.narrow(-1, taken, end - first)))
                taken += end - first
        joined: list[torch.Tensor] = []
        reached = 0
        nothing = like.new_zeros((*like.shape[:-1], 0))
        for first, piece in [*sorted(pieces, key=lambda each: each[0]), (self.size, nothing)]:
            if first > reached:
                joined.append(like.new_zeros((*like.shape[:-1], first - reached)))
            joined.append(piece)
            reached = first + piece.shape[-1]
        return torch.cat(joined, -1)


@functools.lru_cache(maxsize=4096)
def _numbers(heads: Heads, device: torch.device) -> torch.Tensor:
    return torch.tensor(heads, device=device)


@functools.lru_cache(maxsize=4096)
def _positions(spans: tuple[tuple[int, int], ...], device: torch.device) -> torch.Tensor:
    return torch.cat([torch.arange(first, end, device=device) for first, end in spans])


class _Adapter(NamedTuple):
    """A LoRA adapter: y += scale * B A dropout(x)."""

    a: torch.Tensor
    b: torch.Tensor
    dropout: nn.Module
    scale: float


class _Gather(NamedTuple):
    """Which part of each of several weights makes one linear map; all map the same inputs, or there is one."""

    divisions: tuple[HeadDivision, ...]
    heads: Heads
    rows: bool
    """True if outputs are chosen, False if inputs are."""
    transposed: bool
    """True for weights of shape [inputs, outputs]."""
    shapes: tuple[tuple[int, int], ...]
    """Shape of each weight, packed or not."""

    @property
    def dim(self) -> int:
        """Dimension of a weight in which heads are chosen."""
        return 0 if self.rows != self.transposed else 1

    @property
    def sizes(self) -> list[int]:
        """Size of each part."""
        return [division.size_of(self.heads) for division in self.divisions]

    def gathered(self, weights: tuple[torch.Tensor, ...], dtype: torch.dtype) -> torch.Tensor:
        """Return the linear map, shape [outputs, inputs], for one product. dtype: of the product."""
        if len(weights) == 1:
            weight = unpacked_for_now(weights[0], self.shapes[0], dtype)
            whole = self.divisions[0].select(weight, self.dim, self.heads)
        else:
            whole = self._joined(weights, dtype)
        return whole.t() if self.transposed else whole

    def _joined(self, weights: tuple[torch.Tensor, ...], dtype: torch.dtype) -> torch.Tensor:
        """Return the parts of several weights, one after the other; each is copied once."""
        sizes = self.sizes
        shape = list(self.shapes[0])
        shape[self.dim] = sum(sizes)
        whole = weights[0].new_empty(shape, dtype=dtype)
        parts = whole.split(sizes, self.dim)
        for division, weight, own, part in zip(self.divisions, weights, self.shapes, parts, strict=True):
            division.select(unpacked_for_now(weight, own, dtype), self.dim, self.heads, part)
        return whole

    def accumulate(self, weights: Sequence[torch.Tensor], gradient: torch.Tensor, given: torch.Tensor) -> None:
        """Add to the gradients of the weights, given those of the outputs, shape [rows, outputs], and the inputs.

        The gradient of a copy in half precision is its master's, in the master's type.
        """
        made = given.t() @ gradient if self.transposed else gradient.t() @ given
        parts = made.split(self.sizes, self.dim)
        for division, weight, part in zip(self.divisions, weights, parts, strict=True):
            if not weight.requires_grad:
                continue
            owner = master_of(weight)
            if owner.grad is None:
                owner.grad = division.scattered(part.to(owner.dtype), self.dim, self.heads)
            else:
                division.add_into(owner.grad, part, self.dim, self.heads)


class _GatheredLinear(torch.autograd.Function):
    """Linear map of rows by gathered weights, which are gathered again for the backward: nothing keeps a copy.

    The backward adds to `grad` of the weights itself, only where the heads' part is: autograd would write zeros for the
    other heads and then add a whole matrix, which costs as much as all heads.
    """

    @staticmethod
    def forward(ctx: Any, given: torch.Tensor, bias: Any, gather: _Gather, *weights: torch.Tensor) -> torch.Tensor:
        ctx.gather, ctx.weights = gather, weights
        ctx.save_for_backward(given)
        return functional.linear(given, gather.gathered(weights, given.dtype), bias)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[Any, ...]:
        (given,) = ctx.saved_tensors
        wanted, bias_wanted, _, *weights_wanted = ctx.needs_input_grad
        to_input = gradient @ ctx.gather.gathered(ctx.weights, gradient.dtype) if wanted else None
        to_bias = gradient.sum(0) if bias_wanted else None
        if any(weights_wanted):
            ctx.gather.accumulate(ctx.weights, gradient, given)
        return to_input, to_bias, None, *(None for _ in weights_wanted)


def _gathered_linear(
    given: torch.Tensor, bias: torch.Tensor | None, gather: _Gather, weights: tuple[torch.Tensor, ...]
) -> torch.Tensor:
    if torch.is_grad_enabled():
        made: torch.Tensor = _GatheredLinear.apply(given.flatten(0, -2), bias, gather, *weights)
        return made.unflatten(0, given.shape[:-1])
    return functional.linear(given, gather.gathered(weights, given.dtype), bias)


class NarrowLayer:
    """A dense layer y = W x + b, with its LoRA adapter if it has one, computed for some heads.

    Weights are read from the module in each call, since loading replaces them.
    """

    def __init__(self, layer: DenseLayer, module: nn.Module, division: HeadDivision) -> None:
        """division: of the layer's outputs for `heads_made`, of its inputs for `contribution`."""
        self.name, self.shape, self.module, self.division = layer.name, layer.shape, module, division
        self.base: Any = module.get_submodule("base_layer") if hasattr(module, "lora_A") else module
        self.transposed = isinstance(self.base, Conv1D)
        if getattr(module, "lora_variant", None) or any(getattr(module, "lora_bias", {}).values()):
            raise Refused(f"{self.name} has an adapter that is no plain LoRA")

    @property
    def output_size(self) -> int:
        """Number of outputs of the whole layer."""
        return self.shape[1 if self.transposed else 0]

    def adapted(self, made: torch.Tensor, given: torch.Tensor, heads: Heads) -> torch.Tensor:
        """Add what the adapter makes of the layer's input to the outputs that these heads own."""
        for adapter in self._adapters():
            low = functional.linear(adapter.dropout(given), adapter.a)
            made = made + functional.linear(low, self.division.select(adapter.b, 0, heads)) * adapter.scale
        return made

    def contribution(self, given: torch.Tensor, heads: Heads, bias: torch.Tensor | None) -> torch.Tensor:
        """Return what these heads add to the output: W[:, heads] x + bias; x holds their inputs only."""
        gather = _Gather((self.division,), heads, False, self.transposed, (self.shape,))
        made = _gathered_linear(given, bias, gather, (self.base.weight,))
        for adapter in self._adapters():
            low = functional.linear(adapter.dropout(given), self.division.select(adapter.a, 1, heads))
            made = made + functional.linear(low, adapter.b) * adapter.scale
        return made

    def _adapters(self) -> Iterator[_Adapter]:
        module: Any = self.module
        for name in module.active_adapters if module is not self.base else ():
            if name in module.lora_A:
                yield _Adapter(
                    module.lora_A[name].weight,
                    module.lora_B[name].weight,
                    module.lora_dropout[name],
                    module.scaling[name],
                )


def heads_made(layers: Sequence[NarrowLayer], given: torch.Tensor, heads: Heads) -> list[torch.Tensor]:
    """Return the outputs of each layer that these heads own, W[heads] x + b[heads], without adapters.

    All layers read `given`; one product makes the outputs of all.
    """
    divisions, shapes = tuple(layer.division for layer in layers), tuple(layer.shape for layer in layers)
    gather = _Gather(divisions, heads, True, layers[0].transposed, shapes)
    sizes = gather.sizes
    biases = [layer.base.bias for layer in layers]
    bias = None
    if any(each is not None for each in biases):
        bias = torch.cat(
            [
                layer.division.select(each, 0, heads) if each is not None else given.new_zeros(size)
                for layer, each, size in zip(layers, biases, sizes, strict=True)
            ]
        )
    made = _gathered_linear(given, bias, gather, tuple(layer.base.weight for layer in layers))
    return list(made.split(sizes, -1)) if len(layers) > 1 else [made]


def narrow_layer(half: HalfBlock, layer: DenseLayer, heads: int, module: nn.Module) -> NarrowLayer:
    """Return a layer of half a block, divided among its heads. module: the layer's."""
    if layer == half.outer:
        division = HeadDivision(heads, 1, layer.inputs)
    else:
        widths = [part.width for part in half.inner if part.layer == layer]
        division = HeadDivision(heads, len(widths), widths[0])
    return NarrowLayer(layer, module, division)
