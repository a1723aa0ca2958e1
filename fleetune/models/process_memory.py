"""Memory of this process: its peak, its resident size, and releasing what is free."""

import ctypes
import resource
from contextlib import suppress
from pathlib import Path

import torch

from fleetune.procfs import PEAK_RESIDENT, status_bytes


def peak_memory_bytes(device: torch.device) -> int:
    """Return the peak of the process in the device's own memory (VmHWM, or CUDA's allocator)."""
    if device.type == "cuda":
        return int(torch.cuda.max_memory_allocated(device))
    return status_bytes(PEAK_RESIDENT)


def resident_bytes() -> int:
    """Return the current resident size of this process."""
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * resource.getpagesize()


def trim_heap() -> None:
    """Return the C library's free memory to the kernel."""
    with suppress(OSError, AttributeError):  # other C libraries have no malloc_trim
        ctypes.CDLL(None).malloc_trim(0)


def reset_peak() -> None:
    """Reset the peak that the kernel records; where it cannot, the older peak stays, which is an upper bound."""
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
