"""The best sets of given sizes: f micro-batches to train and o others to run forward only.

In descending order of a - w (what training is worth above running forward) the trained all come before the
forward-only, or exchanging two would gain. So a place k splits the order: the f largest a before it, the o largest w
behind it. Moving k past a micro-batch gains (a - m)+ and loses (w - n)+, where m, the least a among the f, never falls
with k and n, the least w among the o, never rises: what decides, (a - w) - (m - n), descends. Hence bisection.
"""

import numpy as np

from fleetune.solving.d2ft.case import Bools, Ints
from fleetune.solving.d2ft.prices import Gains
from fleetune.solving.proofs import Floats


def split_at(a: Floats, w: Floats, fulls: int, forwards: int) -> int:
    """The best place in an order of descending a - w, of one subnet; fulls + forwards must not exceed its length."""
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


def sets_at(gains: Gains, split: Ints, fulls: Ints, forwards: Ints) -> tuple[Bools, Bools]:
    """The two sets for a place in the order of every subnet."""
    order = descending(gains)
    place = np.empty_like(order)
    np.put_along_axis(place, order, np.arange(order.shape[1])[None, :], axis=1)
    before = place < split[:, None]
    return largest(np.where(before, gains.full, -np.inf), fulls), largest(
        np.where(before, -np.inf, gains.forward), forwards
    )


def descending(gains: Gains) -> Ints:
    """Micro-batches of every subnet in descending order of a - w."""
    return np.argsort(gains.forward - gains.full, axis=1, kind="stable")


def largest(values: Floats, count: Ints) -> Bools:
    """The `count` largest of every row, the first of equal ones."""
    order = np.argsort(-values, axis=1, kind="stable")
    chosen = np.zeros(values.shape, bool)
    np.put_along_axis(chosen, order, np.arange(values.shape[1])[None, :] < count[:, None], axis=1)
    return chosen
