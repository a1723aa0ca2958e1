"""Link fit: latency and rate of one direction, estimated from round trips.

A round trip with n bytes is one way with n bytes plus one way back with a small answer. Clocks of two machines differ
by more than microseconds, so between machines both small trips count as half the empty round trip: one way with n
bytes = round trip(n) - round trip(0) / 2. The rate does not depend on this assumption; an asymmetric latency is
averaged over both directions. Devices on one machine share a clock, which times the way back directly.

Noise on a busy machine only adds time, so each size is represented by the lower quartile of its repeats, pooled over
all probes: one undisturbed probe among three determines the result. The line latency_s + n / bytes_per_s minimises the
Huber loss of the relative residuals; with absolute residuals only the largest sizes would count.
"""

from collections.abc import Callable

import numpy as np
from scipy.optimize import least_squares

from fleetune.contracts.record import record
from fleetune.discovery.link_probe import ProbeResult, pool_probes, split_halves
from fleetune.discovery.tolerance import same_times

TYPICAL_QUANTILE = 0.25
GOOD_FIT = 0.2
ATTEMPTS = 3
HUBER_BEND = 0.1
"""Relative residual above which a point counts as an outlier."""
MAX_BYTES_PER_S = 1e12


@record
class LinkFit:
    """Fitted line of a link; `error` is the median relative distance of the sizes' times from it."""

    latency_s: float
    bytes_per_s: float
    error: float


def measure_link(
    probe: Callable[[], ProbeResult], expected: Callable[[LinkFit], bool] = lambda line: True, tolerance: float = 0.1
) -> LinkFit:
    """Probe and fit a link; repeat while the fit is poor, unexpected or unsteady, at most ATTEMPTS times.

    Poor: an error above GOOD_FIT. Unsteady: earlier and later repeats of a probe differ by more than `tolerance`.
    Returns the first acceptable fit, of one probe or of all pooled. If there is none, returns the pooled fit, or the
    fit with the least error if the pooled fit is poor.
    """
    probes: list[ProbeResult] = []
    lines: list[LinkFit] = []
    while True:
        probes.append(probe())
        lines.append(fit_link(probes[-1]))
        if lines[-1].error <= GOOD_FIT and expected(lines[-1]) and _is_steady(probes[-1], tolerance):
            return lines[-1]
        together = fit_link(pool_probes(probes))
        if together.error <= GOOD_FIT and (len(probes) == ATTEMPTS or (len(probes) > 1 and expected(together))):
            return together
        if len(probes) == ATTEMPTS:
            return min([*lines, together], key=lambda line: line.error)


def _is_steady(probed: ProbeResult, tolerance: float) -> bool:
    parts = split_halves(probed)
    if parts is None:
        return True
    earlier, later = (fit_link(part) for part in parts)
    return same_times(earlier, later, tolerance + earlier.error + later.error)


def one_way_s(probed: ProbeResult) -> np.ndarray:
    """One-way duration of each payload size, shape [sizes]."""
    typical_s = np.array([np.quantile(times, TYPICAL_QUANTILE) for times in probed.round_trips_s])
    back_s = np.quantile(probed.back_s, TYPICAL_QUANTILE) if probed.back_s else typical_s[0] / 2
    return np.asarray(typical_s - back_s)


def fit_link(probed: ProbeResult) -> LinkFit:
    """Fit a robust line to the one-way times of a probe; latency_s >= 0, bytes_per_s > 0."""
    sizes_bytes = np.array(probed.sizes_bytes, float)
    times_s = np.maximum(one_way_s(probed), 1e-9)
    scale = np.array([times_s[0], times_s[-1] / sizes_bytes[-1]])  # scales both unknowns to about 1

    def residuals(unknown: np.ndarray) -> np.ndarray:
        latency_s, s_per_byte = unknown * scale
        return np.asarray((latency_s + s_per_byte * sizes_bytes) / times_s - 1)

    least = [0.0, 1 / (MAX_BYTES_PER_S * scale[1])]
    found = least_squares(residuals, [1.0, 1.0], bounds=(least, np.inf), loss="huber", f_scale=HUBER_BEND)
    latency_s, s_per_byte = found.x * scale
    return LinkFit(
        latency_s=float(latency_s),
        bytes_per_s=float(1 / s_per_byte),
        error=float(np.median(np.abs(residuals(found.x)))),
    )
