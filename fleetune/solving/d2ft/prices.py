"""Prices of a place among the trained and among the forward-only: they prove a plan best, and show all its equals.

Choosing sets of given sizes from N micro-batches is a transportation problem, so that a plan is optimal just when there
are prices m (a place among the trained) and n (forward-only) at which every micro-batch is where it gains most among
a - m, w - n and 0; and any plan of these sizes in which each is where it gains most is optimal as well (complementary
slackness; Ahuja, Magnanti, Orlin: Network Flows, 1993, chapter 9). A score of -inf forbids training.
"""

from typing import NamedTuple

import numpy as np

from fleetune.solving.d2ft.case import Bools
from fleetune.solving.d2ft.freedom import Freedom, settled
from fleetune.solving.proofs import Floats

ROUNDING = 2.0**-49
"""Of the largest number in a subnet: gains nearer than this are equal but for the rounding of prices."""


class Prices(NamedTuple):
    """[subnet]"""

    full: Floats
    forward: Floats


class Gains(NamedTuple):
    """Scores [subnet, micro-batch] of both operations."""

    full: Floats
    forward: Floats


def prices(gains: Gains, full: Bools, forward: Bools) -> Prices:
    """Prices at which the optimal sets `full` and `forward` [subnet, micro-batch] are the best of their sizes."""
    a, w, none = gains.full, gains.forward, ~(full | forward)
    more = a - w
    least_m, most_m = _largest(a, none), _smallest(a, full)
    least_n, most_n = _largest(w, none), _smallest(w, forward)
    least_t, most_t = _largest(more, forward), _smallest(more, full)
    m = _between(np.maximum(least_m, least_n + least_t), np.minimum(most_m, most_n + most_t))
    n = _between(np.maximum(least_n, m - most_t), np.minimum(most_n, m - least_t))
    return Prices(m, n)


def all_best(gains: Gains, full: Bools, forward: Bools) -> tuple[Freedom, Bools, Bools]:
    """All plans as good as the optimal one given: what may be trained; what else must, and may, be run forward."""
    at = prices(gains, full, forward)
    scale = np.maximum(np.where(np.isfinite(gains.full), gains.full, 0.0), gains.forward).max(axis=1)
    scale = np.maximum(scale, np.maximum(np.abs(at.full), np.abs(at.forward)))
    gained = np.stack((gains.full - at.full[:, None], gains.forward - at.forward[:, None], np.zeros(gains.full.shape)))
    may = gained >= gained.max(axis=0) - (ROUNDING * scale)[:, None]
    may |= np.stack((full, forward, ~(full | forward)))
    must_full = may[0] & ~may[1] & ~may[2]
    or_forward, or_any = may[0] & may[1] & ~may[2], may[0] & may[1] & may[2]
    must_forward, may_forward = ~may[0] & may[1] & ~may[2], may[1]
    here = must_forward.sum(axis=1)
    wanted = forward.sum(axis=1)
    freedom = Freedom(
        must=must_full,
        may=may[0],
        wanted=full.sum(axis=1),
        or_forward=or_forward,
        or_any=or_any,
        least=or_forward.sum(axis=1) + here - wanted,
        most=may_forward.sum(axis=1) - wanted,
    )
    return settled(freedom), must_forward | or_forward, may_forward


def _largest(values: Floats, where: Bools) -> Floats:
    found: Floats = np.where(where, values, -np.inf).max(axis=1)
    return found


def _smallest(values: Floats, where: Bools) -> Floats:
    found: Floats = np.where(where, values, np.inf).min(axis=1)
    return found


def _between(low: Floats, high: Floats) -> Floats:
    """The middle; the finite end where there is only one, 0 where there is none."""
    low_known, high_known = np.isfinite(low), np.isfinite(high)
    low = np.where(low_known, low, np.where(high_known, high, 0.0))
    return low + (np.where(high_known, high, low) - low) / 2
