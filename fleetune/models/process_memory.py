"""What a process has used at most."""

import ctypes
from contextlib import suppress
from pathlib import Path

import torch


def peak_memory_bytes(device: torch.device) -> int:
    """Peak of the process in the device's own memory (VmHWM, or CUDA's allocator)."""
    if device.type == "cuda":
        return int(torch.cuda.max_memory_allocated(device))
    for line in Path("/proc/self/status").read_text(encoding="ascii", errors="replace").splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    return 0


def resident_bytes() -> int:
    """Memory of this process now."""
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * 4096


def trim_heap() -> None:
    """Give the C library's free memory back to the kernel."""
    with suppress(OSError, AttributeError):  # another C library keeps what it has
        ctypes.CDLL(None).malloc_trim(0)


def reset_peak() -> None:
    """Have the kernel count this process's peak anew; one that cannot keeps the old peak, which is more, never less."""
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
