"""Memory of the device that computes: a process's resident memory on CPUs, its share of the GPU's own on CUDA.

Of a GPU a process holds what torch's allocator has taken for tensors and, outside of it, a context: the driver's state,
the code of kernels, and what libraries allocate by themselves; hundreds of megabytes. See "Memory management" in
PyTorch's notes on CUDA semantics, and nvmlDeviceGetComputeRunningProcesses in the reference of NVML.
"""

import importlib
import os
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
