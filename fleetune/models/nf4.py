"""NF4: frozen weights of linear layers in 4 bits, from which products are computed in the model's own type.

Each block of 64 consecutive elements keeps its largest magnitude as a float32 and, for each element, the nearest of 16
levels, the quantiles of a normal distribution (QLoRA, arXiv:2305.14314, section 3 and appendix E), laid out as
bitsandbytes lays them out: 4.5 bits an element. A product makes the weight anew, in forward and in backward, so that
neither keeps it.
"""

import functools
import math
import threading
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import torch
from torch import nn
from torch.nn import functional

LEVELS = (
    -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635, -0.18477343022823334,
    -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224,
    0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0,
)  # fmt: skip
LEVEL_PAIRS = tuple((LEVELS[byte >> 4], LEVELS[byte & 15]) for byte in range(256))
"""What each byte of codes stands for."""
BLOCK = 64
CODES_BYTES, SCALE_BYTES = BLOCK // 2, 4
"""Of a block."""
PACKED = torch.int8
"""Type of packed weights: transformers converts activations to the type of a weight, but never to this one."""
PORTION_BLOCKS, GPU_PORTION_BLOCKS = 1 << 11, 1 << 16
"""Blocks at once: what is made on the way stays in the cache of a core; a GPU needs work for all its
processors, and 25 MB for that of this many."""


def elements_of(weight: torch.Tensor) -> int:
    """Return the number of elements of a weight, of a packed one up to a block more."""
    held: int = weight.numel()
    return held // (CODES_BYTES + SCALE_BYTES) * BLOCK if weight.dtype == PACKED else held


def packed_bytes(elements: int) -> int:
    """Return the size of so many elements when they are packed."""
    return math.ceil(elements / BLOCK) * (CODES_BYTES + SCALE_BYTES)


def pack(weight: torch.Tensor) -> torch.Tensor:
    """Return a weight of any shape in 4 bits: PACKED, flat, the codes of all blocks before their scales."""
    elements = weight.numel()
    blocks = math.ceil(elements / BLOCK)
    flat = functional.pad(weight.detach().reshape(-1), (0, blocks * BLOCK - elements)).view(blocks, BLOCK)
    levels = flat.new_tensor(LEVELS, dtype=torch.float32)
    borders = (levels[1:] + levels[:-1]) / 2
    codes = torch.empty(blocks, CODES_BYTES, dtype=torch.uint8, device=weight.device)
    scales = torch.empty(blocks, dtype=torch.float32, device=weight.device)
    for first, end in _portions(blocks, weight.device):
        part = flat[first:end].float()
        largest = part.abs().amax(1)
        scales[first:end] = largest
        places = torch.bucketize(part / torch.where(largest > 0, largest, 1.0)[:, None], borders).to(torch.uint8)
        codes[first:end] = (places[:, 0::2] << 4) | places[:, 1::2]
    return torch.cat([codes.view(-1), scales.view(torch.uint8)]).view(PACKED)


class _Memory(Protocol):
    """Gives memory for so many elements and more, whose content is anything."""

    def __call__(self, elements: int, device: torch.device, dtype: torch.dtype) -> torch.Tensor: ...


def _new_memory(elements: int, device: torch.device, dtype: torch.dtype) -> torch.Tensor:
    return torch.empty(elements, dtype=dtype, device=device)


def unpack(
    packed: torch.Tensor, shape: Sequence[int], dtype: torch.dtype, memory: _Memory = _new_memory
) -> torch.Tensor:
    """Return the weight of a shape from what `pack` has made; its elements are rounded once, to `dtype`.

    memory: where the weight is written to, and what is made on the way.
    """
    elements, device = math.prod(shape), packed.device
    blocks = math.ceil(elements / BLOCK)
    codes = packed[: blocks * CODES_BYTES].view(torch.uint8)
    scales = packed[blocks * CODES_BYTES :].view(torch.float32)[:, None]
    pairs = _gpu_pairs(device) if device.type == "cuda" else _pairs(scales)
    weight = memory(blocks * BLOCK, device, dtype)[: blocks * BLOCK].view(blocks, BLOCK)
    most = min(blocks, _portion_blocks(device)) * CODES_BYTES
    places, found = memory(most, device, torch.int32), memory(most, device, torch.int64)
    for first, end in _portions(blocks, device):
        some = (end - first) * CODES_BYTES
        places[:some].copy_(codes[first * CODES_BYTES : end * CODES_BYTES])
        part = torch.index_select(pairs, 0, places[:some], out=found[:some]).view(torch.float32)
        torch.mul(part.view(end - first, BLOCK), scales[first:end], out=weight[first:end])
    return weight.view(-1)[:elements].view(*shape)


class _Scratch(threading.local):
    """Memory for one weight at a time. Made anew for each product, weights would lie between activations that are
    kept, and leave holes there that glibc does not fill again: in float32 as many bytes as all activations."""

    def __init__(self) -> None:
        self._held: dict[tuple[torch.device, torch.dtype], torch.Tensor] = {}

    def take(self, elements: int, device: torch.device, dtype: torch.dtype) -> torch.Tensor:
        """Return memory for so many elements and more, whose content is anything."""
        held = self._held.get((device, dtype))
        if held is None or held.numel() < elements:
            held = self._held[device, dtype] = _new_memory(elements, device, dtype)
        return held


_SCRATCH = _Scratch()


def _passing(packed: torch.Tensor, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """Return the weight in memory that the next call of this thread writes over."""
    stands_in = type(packed) not in (torch.Tensor, nn.Parameter)  # without memory, of a model that is recorded
    if stands_in or packed.is_cuda:  # torch's allocator of a GPU leaves no holes
        return unpack(packed, shape, dtype)
    return unpack(packed, shape, dtype, _SCRATCH.take)


def unpacked_for_now(weight: torch.Tensor, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """Return a weight of this shape for products in a type: a packed one in memory that the next call of this thread
    writes over, any other one as it is."""
    return _passing(weight, shape, dtype) if weight.dtype == PACKED else weight


def rounded(weight: torch.Tensor) -> torch.Tensor:
    """Return a weight as products read it once it is packed."""
    return unpack(pack(weight), weight.shape, weight.dtype)


def as_held(tensor: torch.Tensor, held: torch.Tensor) -> torch.Tensor:
    """Return a weight that was read as the model holds it: packed if it holds it so, otherwise as it is."""
    return pack(tensor) if held.dtype == PACKED and tensor.is_floating_point() else tensor


class Nf4Linear(nn.Linear):
    """A linear layer whose weight is packed and frozen; `in_features` and `out_features` tell its shape."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Return the product in the type of the input, [..., in_features] -> [..., out_features]."""
        found: torch.Tensor = _Product.apply(input, self.weight, self.bias, (self.out_features, self.in_features))
        return found


class _Product(torch.autograd.Function):
    """A product with a frozen weight that is unpacked in forward and in backward."""

    @staticmethod
    def forward(
        ctx: Any, input: torch.Tensor, packed: torch.Tensor, bias: torch.Tensor | None, shape: tuple[int, int]
    ) -> torch.Tensor:
        ctx.save_for_backward(packed)
        ctx.shape = shape
        return functional.linear(input, _passing(packed, shape, input.dtype), bias)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        (packed,) = ctx.saved_tensors
        (gradient,), (out_features, in_features) = gradients, ctx.shape
        rows = gradient.reshape(-1, out_features)
        of_input = of_bias = None
        if ctx.needs_input_grad[0]:
            weight = _passing(packed, ctx.shape, gradient.dtype)
            of_input = (rows @ weight).view(*gradient.shape[:-1], in_features)
        if ctx.needs_input_grad[2]:
            of_bias = rows.sum(0)
        return of_input, None, of_bias, None


def pack_frozen_layers(model: nn.Module, *, keep: Sequence[nn.Module] = ()) -> list[str]:
    """Let the frozen linear layers of a model on the meta device hold packed weights; return the names of these.

    As in QLoRA, what is left alone: trained layers, weights that two layers share, `keep` (such as the head of a
    language model), and layers of other kinds, such as embeddings, convolutions and experts.
    """
    names: dict[int, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        names.setdefault(id(parameter), []).append(name)
    kept = {id(module.weight) for module in keep}
    found = []
    for module in list(model.modules()):
        if type(module) is not nn.Linear or module.weight.requires_grad or id(module.weight) in kept:
            continue
        held = names[id(module.weight)]
        if len(held) > 1 or ".original_module." in held[0]:
            continue
        size = packed_bytes(module.weight.numel())
        module.__class__ = Nf4Linear
        module.weight = nn.Parameter(torch.empty(size, dtype=PACKED, device="meta"), requires_grad=False)
        found.append(held[0])
    return found


def _pairs(like: torch.Tensor) -> torch.Tensor:
    """Return the levels of each byte as one number, which is found four times as fast, on the device of a tensor."""
    return like.new_tensor(LEVEL_PAIRS, dtype=torch.float32).view(torch.int64).view(-1)


@functools.cache
def _gpu_pairs(device: torch.device) -> torch.Tensor:
    """Return the same, which is copied to a GPU once: a copy waits for all kernels before it."""
    return _pairs(torch.empty(0, device=device))


def _portion_blocks(device: torch.device) -> int:
    return GPU_PORTION_BLOCKS if device.type == "cuda" else PORTION_BLOCKS


def _portions(blocks: int, device: torch.device) -> Iterator[tuple[int, int]]:
    most = _portion_blocks(device)
    return ((first, min(blocks, first + most)) for first in range(0, blocks, most))
