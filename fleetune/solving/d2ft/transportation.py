"""Best sets of given sizes (f micro-batches to train, o to run forward only), and dual prices that prove them optimal.

Every micro-batch has a score a if it is trained, w if it only runs forward, and 0 if it is skipped.

Sets: by descending a - w (the advantage of training over running forward) the trained come before the forward-only, or
exchanging two would gain. So a position k splits the order: the f largest a before it, the o largest w behind it.
Let m be the least a among the f, and n the least w among the o. Moving k past a micro-batch gains (a - m)+ and loses
(w - n)+; m never decreases with k and n never increases: the decisive (a - w) - (m - n) decreases. Hence bisection.

Prices: choosing the sets is a transportation problem, so a plan is optimal if and only if there are prices m of
training and n of running forward at which every micro-batch is where it gains most among a - m, w - n and 0; and any
plan of these sizes with that property is optimal as well (complementary slackness; Ahuja, Magnanti, Orlin: Network
Flows, 1993, chapter 9). A score of -inf excludes training.
"""

from typing import NamedTuple

import numpy as np

from fleetune.arrays import Bools, Floats, Ints
from fleetune.solving.d2ft.ties import OptimalChoices, tightened

ROUNDING = 2.0**-49
"""Relative to the largest number of a subnet: gains closer than this are equal up to the rounding of prices."""


class DualPrices(NamedTuple):
    """Dual prices [subnet]."""

    full: Floats
    forward: Floats


class Scores(NamedTuple):
    """Scores [subnet, micro-batch] of both operations."""

    full: Floats
    forward: Floats


def dual_prices(scores: Scores, full: Bools, forward: Bools) -> DualPrices:
    """Return prices at which the optimal sets `full` and `forward` [subnet, micro-batch] are the best of their
    sizes."""
    a, w, none = scores.full, scores.forward, ~(full | forward)
    more = a - w
    least_m, most_m = _largest(a, none), _smallest(a, full)
    least_n, most_n = _largest(w, none), _smallest(w, forward)
    least_t, most_t = _largest(more, forward), _smallest(more, full)
    m = _between(np.maximum(least_m, least_n + least_t), np.minimum(most_m, most_n + most_t))
    n = _between(np.maximum(least_n, m - most_t), np.minimum(most_n, m - least_t))
    return DualPrices(m, n)


class JointOptima(NamedTuple):
    """All plans that are equally good: what to train, and what to run forward only [subnet, micro-batch]."""

    full: OptimalChoices
    must_forward: Bools
    """Run forward only if they are not trained."""
    may_forward: Bools


def all_optima(scores: Scores, full: Bools, forward: Bools) -> JointOptima:
    """Return all plans as good as a given optimum."""
    at = dual_prices(scores, full, forward)
    scale = np.maximum(np.where(np.isfinite(scores.full), scores.full, 0.0), scores.forward).max(axis=1)
    scale = np.maximum(scale, np.maximum(np.abs(at.full), np.abs(at.forward)))
    gained = np.stack(
        (scores.full - at.full[:, None], scores.forward - at.forward[:, None], np.zeros(scores.full.shape))
    )
    may = gained >= gained.max(axis=0) - (ROUNDING * scale)[:, None]
    may |= np.stack((full, forward, ~(full | forward)))
    must_full = may[0] & ~may[1] & ~may[2]
    or_forward, or_any = may[0] & may[1] & ~may[2], may[0] & may[1] & may[2]
    must_forward, may_forward = ~may[0] & may[1] & ~may[2], may[1]
    here = must_forward.sum(axis=1)
    wanted = forward.sum(axis=1)
    choices = OptimalChoices(
        must=must_full,
        may=may[0],
        wanted=full.sum(axis=1),
        or_forward=or_forward,
        or_any=or_any,
        least=or_forward.sum(axis=1) + here - wanted,
        most=may_forward.sum(axis=1) - wanted,
    )
    return JointOptima(tightened(choices), must_forward | or_forward, may_forward)


def _largest(values: Floats, where: Bools) -> Floats:
    found: Floats = np.where(where, values, -np.inf).max(axis=1)
    return found


def _smallest(values: Floats, where: Bools) -> Floats:
    found: Floats = np.where(where, values, np.inf).min(axis=1)
    return found


def _between(low: Floats, high: Floats) -> Floats:
    """Return the midpoint; the finite end if only one is finite, 0 if none is."""
    low_known, high_known = np.isfinite(low), np.isfinite(high)
    low = np.where(low_known, low, np.where(high_known, high, 0.0))
    return low + (np.where(high_known, high, low) - low) / 2


def split_position(a: Floats, w: Floats, fulls: int, forwards: int) -> int:
    """Return the best split position of one subnet ordered by descending a - w; fulls + forwards is at most its
    length."""
    low, high = fulls, len(a) - forwards
    if fulls == 0 or forwards == 0:
        return low if fulls == 0 else high
    while low < high:
        k = (low + high) // 2
        m = np.partition(a[:k], k - fulls)[k - fulls]
        n = np.partition(w[k + 1 :], len(a) - k - 1 - forwards)[len(a) - k - 1 - forwards]
        if a[k] - w[k] - (m - n) > 0:
            low = k + 1
        else:
            high = k
    return low


def sets_at_split(scores: Scores, split: Ints, fulls: Ints, forwards: Ints) -> tuple[Bools, Bools]:
    """Return the two sets for a split position of every subnet."""
    order = by_advantage(scores)
    place = np.empty_like(order)
    np.put_along_axis(place, order, np.arange(order.shape[1])[None, :], axis=1)
    before = place < split[:, None]
    return mask_of_largest(np.where(before, scores.full, -np.inf), fulls), mask_of_largest(
        np.where(before, -np.inf, scores.forward), forwards
    )


def by_advantage(scores: Scores) -> Ints:
    """Sort the micro-batches of every subnet by descending a - w."""
    return np.argsort(scores.forward - scores.full, axis=1, kind="stable")


def mask_of_largest(values: Floats, count: Ints) -> Bools:
    """Return a mask of the `count` largest of every row, ties to the first."""
    order = np.argsort(-values, axis=1, kind="stable")
    chosen = np.zeros(values.shape, bool)
    np.put_along_axis(chosen, order, np.arange(values.shape[1])[None, :] < count[:, None], axis=1)
    return chosen
