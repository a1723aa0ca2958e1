"""A cut in one process: the same losses as between two devices, for models that are compared with a split one."""

from typing import Any

import torch

from fleetune.codecs.codec import decode, encode
from fleetune.contracts.link_codecs import FORWARD_MASK
from fleetune.contracts.plan import BACKWARD, FORWARD, LinkUse


def across_cut(tensor: torch.Tensor, forward: LinkUse, backward: LinkUse) -> torch.Tensor:
    """Return the tensor as it arrives behind a cut; its gradient arrives before the cut as `backward` sends it.

    The gradient with respect to what arrived is passed on as that with respect to what was sent (straight-through).
    """
    crossed: torch.Tensor = _Cut.apply(tensor, forward, backward)
    return crossed


class _Cut(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, forward: LinkUse, backward: LinkUse) -> torch.Tensor:
        sent = encode(forward.codec_of(FORWARD), tensor, forward.ratio)
        ctx.backward_use, ctx.kept = backward, sent.kept
        return decode(sent.description, sent.parts, tensor.device, sent.kept).clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        use: LinkUse = ctx.backward_use
        codec = use.codec_of(BACKWARD)
        sent = encode(codec, gradient, use.ratio, ctx.kept)
        kept = ctx.kept if codec == FORWARD_MASK else sent.kept
        return decode(sent.description, sent.parts, gradient.device, kept), None, None
