"""Mixtures of experts run as transformers runs them by default, in forms that can be recorded and measured as well.

transformers multiplies the tokens of all experts in one call of `torch._grouped_mm`. That call knows no double
precision, and its shape rule accepts bfloat16 alone, so neither fake tensors nor tensors on the meta device can pass it
in float32. `RECORDABLE` is the same computation with stand-ins for that one call where it cannot run.

PEFT turns autocast off while it adds an adapter to experts. torch can do so on devices that have autocast; here it can
on the meta device, too.
"""

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import is_fake
from torch.overrides import TorchFunctionMode
from torch.utils.flop_counter import register_flop_formula
from transformers import PretrainedConfig
from transformers.integrations.moe import ExpertsInterface, grouped_mm_experts_forward

RECORDABLE = "recordable"
"""Name of the implementation in transformers' registry; it exists in this process only and is never saved."""
Product = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]


class _Products(TorchFunctionMode):
    """Replaces torch._grouped_mm."""

    def __init__(self, product: Product) -> None:
        super().__init__()
        self._product = product

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch._grouped_mm:
            return self._product(*args, offs=(kwargs or {})["offs"])  # type: ignore[call-arg]
        return func(*args, **(kwargs or {}))


def _of_one_expert(tokens: torch.Tensor, weights: torch.Tensor, offs: torch.Tensor) -> torch.Tensor:
    """Return a result with the shape, the operations and the saved tensors of the grouped product, but no values.

    tokens [rows, width], weights [experts, width, new width]; the result is [rows, new width].
    """
    return tokens @ weights[0]


def _expert_by_expert(tokens: torch.Tensor, weights: torch.Tensor, offs: torch.Tensor) -> torch.Tensor:
    """Return the grouped product, one expert after the other. offs: the row behind each expert's last, [experts]."""
    ends = offs.tolist()
    parts = [tokens[a:b] @ weight for a, b, weight in zip([0, *ends], ends, weights, strict=False)]
    return torch.cat(parts)


def run_experts(module: nn.Module, hidden: torch.Tensor, expert_ids: torch.Tensor, shares: torch.Tensor) -> Any:
    """Run the experts of a layer for tokens [tokens, width] with expert ids and weights [tokens, experts per token]."""
    if hidden.is_meta or is_fake(hidden):
        with _Products(_of_one_expert):
            return grouped_mm_experts_forward(module, hidden, expert_ids, shares)
    if hidden.dtype == torch.float64:
        with _Products(_expert_by_expert):
            return grouped_mm_experts_forward(module, hidden, expert_ids, shares)
    return grouped_mm_experts_forward(module, hidden, expert_ids, shares)


ExpertsInterface.register(RECORDABLE, run_experts)


def use_recordable_experts(config: PretrainedConfig) -> None:
    """Let models of this configuration run their experts as above; models without experts ignore it."""
    config._experts_implementation = RECORDABLE


def holds_experts(module: nn.Module) -> bool:
    """Return whether a module is a layer's experts, which transformers computes in one piece."""
    return hasattr(module, "_is_expert_parallel")


def _without_autocast_on_meta(made: Callable[..., None]) -> Callable[..., None]:
    """Return a constructor of torch.autocast that makes a context without autocast on the meta device, too."""

    @wraps(made)
    def make(self: torch.autocast, device_type: str, *args: Any, **kwargs: Any) -> None:
        is_off = device_type == "meta" and kwargs.get("enabled") is False
        made(self, "cpu" if is_off else device_type, *args, **kwargs)

    return make


torch.autocast.__init__ = _without_autocast_on_meta(torch.autocast.__init__)


def _grouped_product_flops(left: Any, right: Any, *args: Any, **kwargs: Any) -> int:
    """FLOPs of torch._grouped_mm, which torch's FLOP counter does not know.

    Shapes are [rows, width] and [experts, width, new width]; for the gradient of the weights [width, rows] and
    [rows, new width].
    """
    return int(2 * left[-2] * left[-1] * right[-1])


register_flop_formula(torch.ops.aten._grouped_mm)(_grouped_product_flops)
