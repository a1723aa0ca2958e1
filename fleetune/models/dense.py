"""Dense layers, and which parts of their weights make some of their outputs or read some of their inputs.

A LoRA adapter B A (PEFT) belongs to the layer that it changes: rows of B make outputs, columns of A read inputs.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import nn
from transformers.pytorch_utils import Conv1D

from fleetune.models.skeleton import canonical_names


@dataclass(frozen=True, slots=True)
class Slice:
    """Indices [first, end) of one dimension of a parameter."""

    parameter: str
    """By the whole model's canonical name."""
    dim: int
    first: int
    end: int

    def of(self, tensor: torch.Tensor) -> torch.Tensor:
        """That part of the parameter, or of anything of its shape, without a copy."""
        return tensor.narrow(self.dim, self.first, self.end - self.first)


@dataclass(frozen=True, slots=True)
class Dense:
    """A layer y = W x + b, with its adapter where it has one."""

    name: str
    inputs: int
    outputs: int
    by_output: tuple[tuple[str, int], ...]
    """Parameters that have a dimension of outputs, and which."""
    by_input: tuple[tuple[str, int], ...]
    conv1d: bool
    """Of transformers' Conv1D, which keeps W transposed."""

    def rows(self, first: int, end: int) -> tuple[Slice, ...]:
        """What makes outputs [first, end): rows of W and of B, entries of b."""
        return tuple(Slice(name, dim, first, end) for name, dim in self.by_output)

    def columns(self, first: int, end: int) -> tuple[Slice, ...]:
        """What reads inputs [first, end): columns of W and of A."""
        return tuple(Slice(name, dim, first, end) for name, dim in self.by_input)

    @property
    def parameters(self) -> tuple[str, ...]:
        """Canonical names of all its parameters."""
        return tuple(dict.fromkeys(name for name, _ in (*self.by_output, *self.by_input)))


def dense_layers(skeleton: nn.Module) -> dict[nn.Module, Dense]:
    """Every dense layer of a model by its module; what an adapter is made of is part of the layer that it changes."""
    canonical = canonical_names(skeleton)
    found: dict[nn.Module, Dense] = {}
    adapted: list[str] = []
    for name, module in skeleton.named_modules():
        if any(name.startswith(f"{outer}.") for outer in adapted):
            continue
        if hasattr(module, "lora_A"):
            adapted.append(name)
        made = _dense(name, module, canonical)
        if made is not None:
            found[module] = made
    return found


def _dense(name: str, module: nn.Module, canonical: Mapping[str, str]) -> Dense | None:
    inner = "base_layer." if hasattr(module, "lora_A") else ""
    layer = module.get_submodule("base_layer") if inner else module
    if not isinstance(layer, nn.Linear | Conv1D):
        return None
    transposed = isinstance(layer, Conv1D)
    outputs_at, inputs_at = (1, 0) if transposed else (0, 1)
    by_output, by_input = [(f"{inner}weight", outputs_at)], [(f"{inner}weight", inputs_at)]
    if layer.bias is not None:
        by_output.append((f"{inner}bias", 0))
    for adapter in module.get_submodule("lora_A") if inner else ():
        by_output.append((f"lora_B.{adapter}.weight", 0))
        by_input.append((f"lora_A.{adapter}.weight", 1))
    return Dense(
        name=name,
        inputs=int(layer.weight.shape[inputs_at]),
        outputs=int(layer.weight.shape[outputs_at]),
        by_output=tuple((canonical[f"{name}.{own}"], dim) for own, dim in by_output),
        by_input=tuple((canonical[f"{name}.{own}"], dim) for own, dim in by_input),
        conv1d=transposed,
    )
