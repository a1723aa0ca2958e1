"""The model as a chain of runs of layers, and cuts of a chain that keep the slowest part as fast as can be."""

from collections.abc import Callable

import numpy as np

from fleetune.solving.hpp.case import Case, Floats, Ints


def runs(case: Case, most: int) -> Ints:
    """Edges of min(layers, most) runs of layers, first to last: [runs + 1].

    The runs are of about equal work and layer count, and each begins where least crosses nearby.
    """
    if case.layers <= most:
        return np.arange(case.layers + 1)
    work = np.mean(case.forward_s[:, -1] + case.backward_s[:, -1], axis=0)
    place = np.arange(case.layers + 1) / case.layers + (work / work[-1] if work[-1] > 0 else 0.0)
    crossing = case.output_bytes + case.gradient_bytes
    edges = [0]
    for k in range(1, most):
        low, high = np.searchsorted(place, place[-1] * (k + np.array([-0.5, 0.5])) / most)
        low = min(max(int(low), edges[-1] + 1), case.layers - (most - k))
        high = min(max(int(high), low + 1), case.layers - (most - k) + 1)
        edges.append(low + int(np.argmin(crossing[low:high])))
    return np.array([*edges, case.layers])


def balanced(parts: int, cost: Callable[[int], Floats]) -> list[int]:
    """Places 0 = c_0 < c_1 < ... < c_parts = n where the dearest part costs least, and of those the least sum.

    cost(p): [n + 1, n + 1], what part p costs from place i to place j; only i < j is read. Exact for any numbers:
    one dynamic program finds the dearest part, a second the sum under it; O(parts * n^2).
    """
    never = np.tril(np.full_like(cost(0), np.inf))
    places = len(never)
    dearest = np.full(places, np.inf)
    dearest[0] = -np.inf
    for p in range(parts):
        dearest = np.min(np.maximum(dearest[:, None], cost(p) + never), axis=0)
    total, came = np.full(places, np.inf), np.zeros((parts, places), np.int64)
    total[0] = 0.0
    for p in range(parts):
        own = cost(p) + never
        sums = total[:, None] + np.where(own <= dearest[-1], own, np.inf)
        came[p] = np.argmin(sums, axis=0)
        total = sums[came[p], np.arange(places)]
    cuts = [places - 1]
    for p in reversed(range(parts)):
        cuts.append(int(came[p, cuts[-1]]))
    return cuts[::-1]
