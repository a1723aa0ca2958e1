"""From round trips to one direction's latency and rate.

A round trip with n bytes is one way with n bytes plus one way back with a small answer. Clocks of two machines cannot
be compared to microseconds, so between machines the small trips there and back are taken to last equally long, half the
empty round trip each; then one way with n bytes = round trip(n) - round trip(0) / 2. The rate, fitted over differences
in size, does not depend on that assumption; only a lopsided latency is spread evenly over both directions. Devices on
one machine share its clock, and there the way back is known.

Noise on a busy machine only ever adds time, so each size is represented by the lower quartile of its repeats; those of
several probes are taken together, so that a calm one among three is what counts. Through these goes the line
latency_s + n / bytes_per_s with the least Huber loss of relative residuals: a line fitted to absolute ones would see
only the largest sizes.
"""

from collections.abc import Callable

import numpy as np
from scipy.optimize import least_squares

from fleetune.contracts.record import record
from fleetune.discovery.looks import halves, pooled
from fleetune.discovery.protocol import Probed
from fleetune.discovery.tolerance import same_times

TYPICAL_QUANTILE = 0.25
GOOD_FIT = 0.2
ATTEMPTS = 3
HUBER_BEND = 0.1
"""Relative residual from which a point counts as an outlier."""
MOST_BYTES_PER_S = 1e12


@record
class Line:
    """A fitted link; `error` is the median relative distance of the sizes' times from the line."""

    latency_s: float
    bytes_per_s: float
    error: float


def best_fit(
    probe: Callable[[], Probed], expected: Callable[[Line], bool] = lambda line: True, tolerance: float = 0.1
) -> Line:
    """Probe and fit, again while the line is poor, not as expected or not steady; at most ATTEMPTS times.

    Poor: an error above GOOD_FIT. Not steady: the probe's earlier and later repeats differ by more than `tolerance`.
    Returns the first line without fault, of a probe or of all together; where there is none, that of all together
    unless it is poor, else that of the least error.
    """
    probes: list[Probed] = []
    lines: list[Line] = []
    while True:
        probes.append(probe())
        lines.append(fit(probes[-1]))
        if lines[-1].error <= GOOD_FIT and expected(lines[-1]) and _steady(probes[-1], tolerance):
            return lines[-1]
        together = fit(pooled(probes))
        if together.error <= GOOD_FIT and (len(probes) == ATTEMPTS or (len(probes) > 1 and expected(together))):
            return together
        if len(probes) == ATTEMPTS:
            return min([*lines, together], key=lambda line: line.error)


def _steady(probed: Probed, tolerance: float) -> bool:
    parts = halves(probed)
    if parts is None:
        return True
    earlier, later = (fit(part) for part in parts)
    return same_times(earlier, later, tolerance + earlier.error + later.error)


def one_way_s(probed: Probed) -> np.ndarray:
    """Seconds that each size's payload takes one way, shape (sizes,)."""
    typical_s = np.array([np.quantile(times, TYPICAL_QUANTILE) for times in probed.round_trips_s])
    back_s = np.quantile(probed.back_s, TYPICAL_QUANTILE) if probed.back_s else typical_s[0] / 2
    return np.asarray(typical_s - back_s)


def fit(probed: Probed) -> Line:
    """The robust line through a probe's one-way times; latency_s >= 0, bytes_per_s > 0."""
    sizes_bytes = np.array(probed.sizes_bytes, float)
    times_s = np.maximum(one_way_s(probed), 1e-9)
    scale = np.array([times_s[0], times_s[-1] / sizes_bytes[-1]])  # both unknowns near 1

    def residuals(unknown: np.ndarray) -> np.ndarray:
        latency_s, s_per_byte = unknown * scale
        return np.asarray((latency_s + s_per_byte * sizes_bytes) / times_s - 1)

    least = [0.0, 1 / (MOST_BYTES_PER_S * scale[1])]
    found = least_squares(residuals, [1.0, 1.0], bounds=(least, np.inf), loss="huber", f_scale=HUBER_BEND)
    latency_s, s_per_byte = found.x * scale
    return Line(
        latency_s=float(latency_s),
        bytes_per_s=float(1 / s_per_byte),
        error=float(np.median(np.abs(residuals(found.x)))),
    )
