"""Memory of the device that computes: a process's resident memory on CPUs, its share of the GPU's own on CUDA; and
copies between it and the memory that links send from and receive into.

Of a GPU a process holds what torch's allocator has taken for tensors and, outside of it, a context: the driver's state,
the code of kernels, and what libraries allocate by themselves; hundreds of megabytes. See "Memory management" in
PyTorch's notes on CUDA semantics, and nvmlDeviceGetComputeRunningProcesses in the reference of NVML.
"""

import importlib
import os
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any

import torch

from fleetune.linux import PEAK_RESIDENT, library_bytes, resident_bytes, status_bytes

CHANGING_READINGS, READ_AGAIN = 3, 100
"""First readings, in which a context grows, since kernels are loaded when they are first launched; and every how many a
later one is taken, as a plan after a loss may launch others."""
LARGEST_CONTEXT_BYTES = 2 << 30
"""Of what a GPU holds beyond this process's tensors, where nothing tells whose it is, no more counts as its context."""


def compute_on(device: torch.device, memory_bytes: int) -> None:
    """Let this thread compute on a device from now on, and its tensors take at most a share of a GPU's memory.

    Without it, what names no GPU (random seeds, page-locked memory, waits) would concern the machine's first one. A GPU
    that shares the memory of its machine, as a Jetson's, is not limited: the kernel reclaims what others use there.
    """
    if device.type != "cuda":
        return
    torch.cuda.set_device(device)
    gpu = torch.cuda.get_device_properties(device)
    if memory_bytes < gpu.total_memory and not gpu.is_integrated:
        left_bytes = max(1, memory_bytes - outside_bytes(device))
        torch.cuda.set_per_process_memory_fraction(left_bytes / gpu.total_memory, device)


def held_bytes(device: torch.device) -> int:
    """Return what this process holds now of the device's memory."""
    if device.type != "cuda":
        return resident_bytes()
    return outside_bytes(device) + int(torch.cuda.memory_allocated(device))


def code_bytes(device: torch.device) -> int:
    """Return the memory of code that is loaded when it is first run: of shared libraries, or of a GPU's context."""
    return library_bytes() if device.type != "cuda" else outside_bytes(device)


def outside_bytes(device: torch.device) -> int:
    """Return what this process holds of a GPU outside of torch's allocator.

    Where NVML does not know this process, as in a container with process ids of its own, all that is in use counts,
    that of other processes too, up to LARGEST_CONTEXT_BYTES.
    """
    reserved_bytes, own_bytes = int(torch.cuda.memory_reserved(device)), _process_bytes(device)
    if own_bytes:
        return max(0, own_bytes - reserved_bytes)
    free_bytes, total_bytes = torch.cuda.mem_get_info(device)
    return min(LARGEST_CONTEXT_BYTES, max(0, int(total_bytes - free_bytes) - reserved_bytes))


class PeakMemory:
    """The peak of this process in the device's memory."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._readings, self._outside_bytes = 0, 0

    def bytes(self) -> int:
        """Return the peak until now."""
        if self._device.type != "cuda":
            return status_bytes(PEAK_RESIDENT)
        self._readings += 1
        if self._readings <= CHANGING_READINGS or self._readings % READ_AGAIN == 0:
            self._outside_bytes = max(self._outside_bytes, outside_bytes(self._device))
        return self._outside_bytes + int(torch.cuda.max_memory_allocated(self._device))


def _process_bytes(device: torch.device) -> int:
    """Return what NVML says that this process holds of a GPU; 0 where it does not know."""
    try:
        nvml, handle = _nvml_handle(device)
        found = {each.pid: each.usedGpuMemory for each in nvml.nvmlDeviceGetComputeRunningProcesses(handle)}
        return int(found.get(os.getpid()) or 0)
    except Exception:  # no driver or package, or a driver that does not tell
        return 0


@cache
def _nvml_handle(device: torch.device) -> tuple[Any, Any]:
    nvml = importlib.import_module("pynvml")
    nvml.nvmlInit()
    uuid = torch.cuda.get_device_properties(device).uuid
    return nvml, nvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}")


DEVICE_ERRORS = (torch.AcceleratorError, torch.OutOfMemoryError)
"""Errors of a device that computes, whatever the tensors were."""


class DeviceCopies:
    """The copies of one worker; a device that computes in this process's memory needs none.

    Of a GPU they run in streams of their own and through page-locked memory, which its copy engines read at the full
    speed of the bus, and without this process: kernels that were launched before go on meanwhile. All tensors of a
    message are copied at once and waited for once. See "CUDA semantics" in PyTorch's documentation, and
    `Tensor.record_stream`.
    """

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
