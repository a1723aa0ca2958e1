"""The band divided so that blocks with given devices all end at once: the best division for that allocation.

LoLa-DEFT's Lemma 1 reaches the same by dual variables; here the common end is the root of one equation, found to the
last bits.
"""

import numpy as np

from fleetune.solving.deft.case import Case, Draft, Ints, trimmed
from fleetune.solving.proofs import Floats

MOST_STEPS = 100
"""Newton's method needs about ten."""


def spare_s(compute_s: Floats, upload_s: Floats) -> float:
    """How long after the longest computation all end, when the band is divided so that they end at once.

    Both [block], upload_s over the whole band. The part of the band that block l needs to end at T is
    upload_s[l] / (T - compute_s[l]); the parts add up to 1. Their sum's reciprocal is concave and rises in T, so
    Newton's method on it never passes the root from below. T is kept as a distance from the longest computation, for
    computations may be longer than uploads by more than floats can tell.
    """
    before_s = np.max(compute_s) - compute_s
    spare = float(np.max(upload_s - before_s))
    for _ in range(MOST_STEPS if spare > 0 else 0):
        parts = upload_s / (spare + before_s)
        total = float(np.sum(parts))
        following = spare + total * (total - 1) / float(np.sum(parts / (spare + before_s)))
        if not following > spare:
            break
        spare = following
    return spare


def ends_s(case: Case, devices: Ints) -> float:
    """The least latency of this allocation."""
    compute_s, upload_s = case.of(devices)
    return float(np.max(compute_s)) + spare_s(compute_s, upload_s)


def divided(case: Case, devices: Ints) -> Draft:
    """This allocation with the band at its best; equal parts where there is nothing to send."""
    compute_s, upload_s = case.of(devices)
    spare = spare_s(compute_s, upload_s)
    if not spare > 0:
        return case.evenly(devices)
    parts = upload_s / (spare + (np.max(compute_s) - compute_s))
    band_hz = case.problem.bandwidth_hz
    return Draft(devices, trimmed((parts / np.sum(parts) * band_hz).tolist(), band_hz))
