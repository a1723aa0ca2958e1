"""A cut in one process: the same losses as between two devices, for models that are compared with a split one."""

from typing import Any

import torch

from fleetune.codecs.codec import decode, encode
from fleetune.contracts.link_codecs import FORWARD_MASK
from fleetune.contracts.plan import BACKWARD, FORWARD, LinkUse

Residuals = dict[Any, torch.Tensor]
"""(Direction, micro-batch) -> what its last message lost."""


def across_cut(
    tensor: torch.Tensor,
    forward: LinkUse,
    backward: LinkUse,
    residuals: Residuals | None = None,
    micro_batch: int = 0,
) -> torch.Tensor:
    """Return the tensor as it arrives behind a cut; its gradient arrives before the cut as `backward` sends it.

    With `residuals`, what a message loses is kept there and added to the next one of the same micro-batch.

    The gradient with respect to what arrived is passed on as that with respect to what was sent (straight-through).
    """
    crossed: torch.Tensor = _Cut.apply(tensor, forward, backward, residuals, micro_batch)
    return crossed


class _Cut(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, tensor: torch.Tensor, forward: LinkUse, backward: LinkUse, residuals: Residuals | None, at: int
    ) -> torch.Tensor:
        whole = tensor if residuals is None else tensor + residuals.get((FORWARD, at), torch.zeros_like(tensor))
        sent = encode(forward.codec_of(FORWARD), whole, forward.ratio)
        ctx.backward_use, ctx.kept, ctx.residuals, ctx.at = backward, sent.kept, residuals, at
        found = decode(sent.description, sent.parts, tensor.device, sent.kept).clone()
        if residuals is not None:
            residuals[FORWARD, at] = whole - found
        return found

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None, None, None, None]:
        use: LinkUse = ctx.backward_use
        codec = use.codec_of(BACKWARD)
        residuals: Residuals | None = ctx.residuals
        whole = gradient
        if residuals is not None:
            whole = gradient + residuals.get((BACKWARD, ctx.at), torch.zeros_like(gradient))
        if whole.dtype == torch.float16 and not whole.isfinite().all():
            return whole, None, None, None, None  # it has overflowed, and no step is taken
        sent = encode(codec, whole, use.ratio, ctx.kept)
        kept = ctx.kept if codec == FORWARD_MASK else sent.kept
        found = decode(sent.description, sent.parts, gradient.device, kept)
        if residuals is not None:
            residuals[BACKWARD, ctx.at] = whole - found
        return found, None, None, None, None
