"""Mixed precision in plain PyTorch: each forward of an unsplit model calls it with its parameters in half precision.

The parameters stay float32. Autograd casts their gradients back and sums micro-batches up in float32. Nothing of the
library is used.
"""

from types import SimpleNamespace
from typing import Any

import torch
from torch import nn
from torch.amp.grad_scaler import GradScaler
from torch.func import functional_call
from torch.nn.modules.batchnorm import _BatchNorm

FIRST_SCALE = 2.0**16
HALF = {"bf16": torch.bfloat16, "fp16": torch.float16}


def compute_in_half(model: nn.Module, mixed_precision: str) -> nn.Module:
    """Let a model compute in half precision, but for its batch norms' parameters; it returns float32 logits."""
    half = HALF[mixed_precision]
    whole = model.forward
    kept = {id(p) for module in model.modules() if isinstance(module, _BatchNorm) for p in module.parameters()}

    def forward(**inputs: torch.Tensor) -> Any:
        cast = {name: p.to(half) for name, p in model.named_parameters() if id(p) not in kept}
        given = {name: value.to(half) if value.is_floating_point() else value for name, value in inputs.items()}
        model.forward = whole
        try:
            return SimpleNamespace(logits=functional_call(model, cast, kwargs=given).logits.float())
        finally:
            model.forward = forward

    model.forward = forward
    if half is torch.float16:
        model.loss_scaler = GradScaler(next(model.parameters()).device.type, FIRST_SCALE)
    return model


def scaler_of(model: nn.Module) -> GradScaler:
    """Return what scales the loss of a model; of one that does not compute in float16 it does nothing."""
    return getattr(model, "loss_scaler", None) or GradScaler("cpu", enabled=False)
