"""What another device has sent is compared with what was to come, so that an error names its sender.

Devices of a run are admitted by their keys, and may still have other versions or a broken memory: PyTorch would add a
tensor of one element to a whole weight, and blame the device that does so for all others.
"""

from collections.abc import Mapping
from typing import Any

import torch

from fleetune.errors import Refused

Shape = tuple[int, ...]


def check_tensor(sender: str, what: str, tensor: torch.Tensor, dtype: torch.dtype, shape: Shape | None) -> None:
    """Refuse a tensor of another type or shape. shape: None if it is not known."""
    if tensor.dtype != dtype or (shape is not None and tuple(tensor.shape) != shape):
        expected = f"{_spelled(dtype)} {list(shape)}" if shape is not None else _spelled(dtype)
        raise Refused(
            f"{sender} sent {what} as {_spelled(tensor.dtype)} {list(tensor.shape)}, and not as {expected}; see that "
            "all devices run the same version, and test that device's memory"
        )


def check_alike(sender: str, what: str, found: Mapping[Any, torch.Tensor], wanted: Mapping[Any, torch.Tensor]) -> None:
    """Refuse tensors that are not all among those of these names, types and shapes."""
    for key, tensor in found.items():
        if key not in wanted:
            raise Refused(f"{sender} sent {what} with {str(key)[:80]!r}, which is no part of it")
        like = wanted[key]
        check_tensor(sender, f"{what} {key}", tensor, like.dtype, tuple(like.shape))


def _spelled(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
