"""Copies between the memory that links send from and receive into, and the device that computes.

Of a GPU they run in streams of their own and through page-locked memory, which its copy engines read at the full speed
of the bus, and without this process: kernels that were launched before go on meanwhile. All tensors of a message are
copied at once and waited for once. See "CUDA semantics" in PyTorch's documentation, and `Tensor.record_stream`.
"""

from collections.abc import Iterable, Mapping

import torch

DEVICE_ERRORS = (torch.AcceleratorError, torch.OutOfMemoryError)
"""Errors of a device that computes, whatever the tensors were."""


class DeviceCopies:
    """The copies of one worker; a device that computes in this process's memory needs none."""

    def __init__(self, device: torch.device) -> None:
        """device: that computes; its streams are made with the first copy."""
        self._device = device
        self._streams: dict[str, torch.cuda.Stream] = {}

    def to_host(self, tensors: Iterable[torch.Tensor]) -> list[torch.Tensor]:
        """Return contiguous tensors of the same values that a link can send, once what computes them has ended."""
        found = [tensor.detach().contiguous() for tensor in tensors]
        if not any(tensor.is_cuda for tensor in found):
            return found
        stream = self._stream("to host")
        stream.wait_stream(torch.cuda.current_stream(self._device))
        copies = []
        with torch.cuda.stream(stream):
            for tensor in found:
                copies.append(_page_locked(tensor).copy_(tensor, non_blocking=True) if tensor.is_cuda else tensor)
        for tensor in found:
            if tensor.is_cuda:
                tensor.record_stream(stream)  # it may be let go at once, and its memory used again
        stream.synchronize()
        return copies

    def to_device(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return a received tensor on the device: work that is launched from now on finds it there."""
        if self._device.type != "cuda":
            return tensor.to(self._device)
        stream, current = self._stream("to device"), torch.cuda.current_stream(self._device)
        host = _page_locked(tensor).copy_(tensor)
        with torch.cuda.stream(stream):
            there = host.to(self._device, non_blocking=True)
        current.wait_stream(stream)
        there.record_stream(current)
        return there

    def _stream(self, name: str) -> torch.cuda.Stream:
        if name not in self._streams:
            self._streams[name] = torch.cuda.Stream(self._device)
        return self._streams[name]


def on_host(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return contiguous tensors in this process's memory, from another thread than the one that computes: what is
    launched from now on waits for no copy, and no copy for it. Until then nothing may change them."""
    devices = {tensor.device for tensor in tensors.values() if tensor.is_cuda}
    found = {name: tensor.contiguous() for name, tensor in tensors.items() if not tensor.is_cuda}
    for device in devices:
        stream = torch.cuda.Stream(device)
        stream.wait_stream(torch.cuda.default_stream(device))
        with torch.cuda.stream(stream):
            found |= {name: tensor.cpu().contiguous() for name, tensor in tensors.items() if tensor.device == device}
    return {name: found[name] for name in tensors}


def await_device(device: torch.device) -> None:
    """Wait until a GPU has done what was launched, so that the time of what follows has nothing of it."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _page_locked(like: torch.Tensor) -> torch.Tensor:
    """Return page-locked memory of the same shape and type; torch keeps it for later copies when it is let go."""
    return torch.empty(like.shape, dtype=like.dtype, pin_memory=True)
