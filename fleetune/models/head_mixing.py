"""What makes heads depend on each other: gates may only leave out heads that others do not read.

Between the layers that make heads and the one that joins them, norms over all heads (OLMo2, BitNet) and parameters of
the attention itself (the pairs of heads of DiffLlama) see more than one head. That is told by the order of calls and by
the sizes of parameters, as blocks are recognised.
"""

from collections.abc import Collection, Sequence
from typing import NamedTuple

from torch import nn


class Passed(NamedTuple):
    """A module with parameters of its own that is no dense layer, called in a block."""

    name: str
    calls: int
    """Number of the block's dense layers that were called before."""
    elements: int
    """Of its largest parameter."""


def modules_beside(skeleton: nn.Module, dense: Collection[nn.Module], names: Sequence[str]) -> dict[nn.Module, Passed]:
    """Return the modules with parameters of their own outside dense layers, whose names these are."""
    found = {}
    for name, module in skeleton.named_modules():
        sizes = [parameter.numel() for parameter in module.parameters(recurse=False)]
        if sizes and module not in dense and not any(name.startswith(f"{layer}.") for layer in names):
            found[module] = Passed(name, 0, max(sizes))
    return found


def mixing(passed: Sequence[Passed], steps: Sequence[int], head_size: int) -> str:
    """Return the name of what reads several heads at once; '' if nothing does.

    passed: of the block. steps: numbers of dense layers that make heads, join them, and so on, in the order of calls.
    head_size: elements of one head.
    """
    joins, ups = steps[0], steps[2]
    for each in passed:
        in_attention = 1 <= each.calls <= joins and each.elements > head_size
        in_feed_forward = joins + 2 <= each.calls <= joins + 1 + ups and each.elements > 1
        if in_attention or in_feed_forward:
            return each.name
    return ""


def holder(names: Sequence[str], inner: Sequence[str]) -> str:
    """Return which of these modules, with parameters of their own, holds all layers that make heads; '' if none does.

    Where units are layers it is not called itself.
    """
    return next((each for each in names if all(name.startswith(f"{each}.") for name in inner)), "")
