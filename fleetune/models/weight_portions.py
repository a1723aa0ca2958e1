"""What is read at once of weights that are held in another type than they are read in: little is there twice."""

from collections.abc import Mapping

import torch

PORTION_ELEMENTS = 1 << 24
"""Elements that are read at once."""
LARGE_ELEMENTS = 1 << 20
"""Smaller tensors that stay as they were read are copied: else they would keep all of their file in memory that was
read for others."""


def portions(held: Mapping[str, torch.Tensor]) -> list[set[str]]:
    """Return names that are read together, a few at a time; large tensors that stay as they are by themselves.

    held: name -> a tensor of the type and size that is held, which may be on the meta device.
    """
    alone = {name for name, one in held.items() if one.numel() >= LARGE_ELEMENTS and one.dtype == torch.float32}
    found = [{name} for name in sorted(alone)]
    room = 0
    for name in sorted(held.keys() - alone):
        if room <= 0:
            found.append(set())
            room = PORTION_ELEMENTS
        found[-1].add(name)
        room -= held[name].numel()
    return found
