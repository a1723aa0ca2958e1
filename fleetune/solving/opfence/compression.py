"""AdaTopK compression: each link is compressed according to its speed (FusionLLM section 5.2, eq. (7))."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fleetune.arrays import Floats

ROUNDING = 1e-12
"""Relative rounding of quotients: compressing 300,000 elements by 300 keeps 1,000, however the ratio was rounded."""
MIN_SLOWEST_S = 1e-300
"""Avoids a division by 0 if no link takes any time."""


class Codec(NamedTuple):
    """Parameters of top-k compression."""

    ratio: float
    """The user's r; 0: everything is sent dense."""
    kept_bytes: float
    """c: bytes of a kept element on the wire."""
    element_bytes: float

    @property
    def max_ratio(self) -> float:
        """Ratio of the slowest link; eq. (7) has 3 for c / element_bytes."""
        return max(1.0, self.kept_bytes / self.element_bytes * self.ratio)

    @property
    def min_wire_share(self) -> float:
        """Lower limit of wire bytes relative to dense bytes, over all links."""
        return min(1.0, self.kept_bytes / self.element_bytes / self.max_ratio) if self.ratio else 1.0

    def ratios(self, dense_s: Floats, slowest_s: float | Floats) -> Floats:
        """Return r_i of eq. (7); dense_s: time of each link's dense transfers, slowest_s: that of the slowest link."""
        share = np.minimum(dense_s / np.maximum(slowest_s, MIN_SLOWEST_S), 1.0)
        ratios: Floats = np.maximum(1.0, self.kept_bytes / self.element_bytes * self.ratio * share)
        return ratios

    def sent(self, dense_bytes: Floats, ratios: Floats) -> tuple[Floats, NDArray[np.bool_]]:
        """Return bytes on the wire and a mask of the compressed links: those for which compression saves bytes."""
        kept = np.ceil(dense_bytes / self.element_bytes / ratios * (1 - ROUNDING))
        smaller = kept * self.kept_bytes < dense_bytes
        return np.where(smaller, kept * self.kept_bytes, dense_bytes), smaller

    def link_seconds(self, links: Sequence[tuple[float, float, float]]) -> list[float]:
        """Return the seconds of links given as (latencies, seconds per byte, dense bytes).

        Equal to the array version, which is slower for a few links.
        """
        dense_s = [alpha_s + beta * dense for alpha_s, beta, dense in links]
        if not self.ratio:
            return dense_s
        factor = self.kept_bytes / self.element_bytes * self.ratio
        slowest_s = max(*dense_s, MIN_SLOWEST_S, MIN_SLOWEST_S)
        found = []
        for (alpha_s, beta, dense), taken_s in zip(links, dense_s, strict=True):
            ratio = max(1.0, factor * min(taken_s / slowest_s, 1.0))
            sent = math.ceil(dense / self.element_bytes / ratio * (1 - ROUNDING)) * self.kept_bytes
            found.append(alpha_s + beta * sent if sent < dense else taken_s)
        return found

    def wire_bytes(self, dense_bytes: Floats, dense_s: Floats, slowest_s: float | Floats) -> Floats:
        """Return bytes on the wire."""
        if not self.ratio:
            return dense_bytes
        return self.sent(dense_bytes, self.ratios(dense_s, slowest_s))[0]
