"""What a process has used at most."""

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
