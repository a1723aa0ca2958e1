"""Memory for what is received."""

import numpy as np

ALIGNMENT_BYTES = 64
"""What torch aligns the memory of tensors to that it makes itself (c10/core/alignment.h, gAlignment)."""


def empty_buffer(size_bytes: int) -> memoryview:
    """Return uninitialised memory, aligned so that a tensor may lie in it; numpy's own is aligned to 16 bytes."""
    room = np.empty(size_bytes + ALIGNMENT_BYTES, dtype=np.uint8)
    start = -room.ctypes.data % ALIGNMENT_BYTES
    return room[start : start + size_bytes].data.cast("B")
