"""Rates and latencies of links as a user states them, and the codecs of what links carry."""

import math

from fleetune.contracts.record import distinct, not_negative, positive, record
from fleetune.errors import Refused

BYTES_PER_MBIT = 125_000


@record
class LinkSpec:
    """Rate and latency of one directed link."""

    source: str
    target: str
    mbit_per_s: float
    latency_s: float = 0.0

    def __post_init__(self) -> None:
        owner = f"links: pair {self.source} -> {self.target}"
        positive(owner, mbit_per_s=self.mbit_per_s)
        not_negative(owner, latency_s=self.latency_s)
        if self.source == self.target:
            raise Refused(f"{owner}: a link joins two different devices")

    @property
    def bytes_per_s(self) -> float:
        """The rate in bytes per second."""
        return self.mbit_per_s * BYTES_PER_MBIT


@record
class NetworkSpec:
    """Links of a simulated fleet, or the rates that container links are shaped to: a default and exceptions."""

    mbit_per_s: float
    latency_s: float = 0.0
    pairs: tuple[LinkSpec, ...] = ()

    def __post_init__(self) -> None:
        positive("links", mbit_per_s=self.mbit_per_s)
        not_negative("links", latency_s=self.latency_s)
        distinct("links", "pair", (f"{pair.source} -> {pair.target}" for pair in self.pairs))

    def link(self, source: str, target: str) -> LinkSpec:
        """Return the specification of one directed link."""
        for pair in self.pairs:
            if (pair.source, pair.target) == (source, target):
                return pair
        return LinkSpec(source=source, target=target, mbit_per_s=self.mbit_per_s, latency_s=self.latency_s)


DENSE, TOP_K = "dense", "top-k"
BYTES_PER_KEPT_ELEMENT = {DENSE: 4.0, TOP_K: 8.0}
"""Bytes on the wire: 4 per dense element; for top-k a value and an int32 index (FusionLLM's int64 indices need 12)."""
CODECS = tuple(BYTES_PER_KEPT_ELEMENT)
ELEMENT_BYTES = 4
"""Size of an element that crosses a cut: float32."""


def wire_bytes(dense_bytes: int, codec: str, ratio: float) -> int:
    """Bytes on the wire of a tensor of `dense_bytes` of which one in `ratio` elements is kept.

    Never more than `dense_bytes`: a codec that saves nothing is not used. Refused: an unknown codec, or a ratio that is
    not above 0.
    """
    if codec not in CODECS:
        raise Refused(f"codec: {codec!r} is not known; allowed are {', '.join(CODECS)}")
    positive("codec", ratio=ratio)
    if codec == DENSE:
        return dense_bytes
    kept = math.ceil(math.ceil(dense_bytes / ELEMENT_BYTES) / ratio)
    return min(dense_bytes, math.ceil(kept * BYTES_PER_KEPT_ELEMENT[codec]))
