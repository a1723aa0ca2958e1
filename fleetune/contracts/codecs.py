"""What tensors are sent as between devices, and how many bytes that takes."""

import math

from fleetune.contracts.record import positive
from fleetune.errors import Refused

DENSE, TOP_K = "dense", "top-k"
BYTES_PER_KEPT_ELEMENT = {DENSE: 4.0, TOP_K: 8.0}
"""On the wire: a dense element its own 4 bytes; one kept by top-k its value and an int32 index (FusionLLM's int64 ones
would make it 12)."""
CODECS = tuple(BYTES_PER_KEPT_ELEMENT)
ELEMENT_BYTES = 4
"""Of what crosses cuts: float32."""


def wire_bytes(dense_bytes: int, codec: str, ratio: float) -> int:
    """Bytes of a message of `dense_bytes`, one of `ratio` elements kept; a codec that would save none is not used."""
    if codec not in CODECS:
        raise Refused(f"codec: {codec!r} is not known; allowed are {', '.join(CODECS)}")
    positive("codec", ratio=ratio)
    if codec == DENSE:
        return dense_bytes
    kept = math.ceil(math.ceil(dense_bytes / ELEMENT_BYTES) / ratio)
    return min(dense_bytes, math.ceil(kept * BYTES_PER_KEPT_ELEMENT[codec]))
