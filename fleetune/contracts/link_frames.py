"""Frames and messages on a link, as those who send them and those who forecast them know them."""

import math

FRAME_BYTES = 1 << 18
"""Longest frame of a message; a frame is encrypted, sent and decrypted as one."""

RING_SLICE_BYTES = 1 << 20
"""Most bytes of a message of a ring all-reduce: a device adds a slice of its part while the next one is on the way."""


def ring_slices(part_bytes: float) -> int:
    """Return in how many messages a member of a group sends its part of the gradients to the next one; at least 1."""
    return max(1, math.ceil(part_bytes / RING_SLICE_BYTES))
