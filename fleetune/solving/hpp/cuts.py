"""Where to cut a chain so that the slowest part is as fast as can be."""

from collections.abc import Callable

import numpy as np

from fleetune.solving.hpp.case import Floats

Cost = Callable[[int], Floats]


def best_cuts(parts: int, cost: Cost, crossing: Cost | None = None) -> list[int] | None:
    """Edges [0, e1, ..., n] of a chain cut into `parts` runs; None where every way costs infinitely much.

    cost(p)[i, j] is what run (i, j) costs as part p, only i < j is read; crossing(p)[j] what a cut at edge j between p
    and p+1 costs. The largest cost is the least possible (exact, dynamic programming over edges), among such cuts the
    sum is the least possible, among those the earliest cuts win. O(parts * n^2).
    """
    worst, _ = _chain(parts, cost, crossing, limit=None)
    limit = float(worst[-1])
    if not np.isfinite(limit):
        return None
    _, origins = _chain(parts, cost, crossing, limit=limit)
    edges = [len(worst) - 1]
    for origin in reversed(origins):
        edges.append(int(origin[edges[-1]]))
    return edges[::-1]


def _chain(parts: int, cost: Cost, crossing: Cost | None, *, limit: float | None) -> tuple[Floats, list[np.ndarray]]:
    """Least cost to reach each edge after all parts, and for every part the edge it came from.

    The cost of a chain is its largest cost; with a limit it is the sum, and nothing may cost more than the limit.
    """
    join = np.maximum if limit is None else np.add
    never = np.tril(np.full_like(cost(0), np.inf))
    reached = np.full(len(never), np.inf)
    reached[0] = -np.inf if limit is None else 0.0
    origins = []
    for p in range(parts):
        if p > 0 and crossing is not None:
            reached = join(reached, crossing(p - 1))
            if limit is not None:
                reached[crossing(p - 1) > limit] = np.inf
        own = cost(p) + never
        options = join(reached[:, None], own)
        if limit is not None:
            np.putmask(options, own > limit, np.inf)
        origin = np.argmin(options, axis=0)
        reached = options[origin, np.arange(len(never))]
        origins.append(origin)
    return reached, origins
