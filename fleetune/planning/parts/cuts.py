"""Where to cut a chain so that the slowest part is as fast as can be."""

from collections.abc import Sequence

import numpy as np

from fleetune.planning.parts.costs import Matrix


def best_cuts(costs: Sequence[Matrix], crossing: Sequence[Matrix]) -> list[int] | None:
    """Edges [0, e1, ..., n] of a chain cut into len(costs) runs; None where every way costs infinitely much.

    costs[p][i, j] is what run (i, j) costs as part p, crossing[p][j] what a cut at edge j between p and p+1 costs.
    The largest cost is the least possible (exact, dynamic programming over edges), among such cuts the sum is the
    least possible, among those the earliest cuts win.
    """
    worst, _ = _chain(costs, crossing, limit=None)
    limit = float(worst[-1])
    if not np.isfinite(limit):
        return None
    _, origins = _chain(costs, crossing, limit=limit)
    edges = [len(worst) - 1]
    for origin in reversed(origins):
        edges.append(int(origin[edges[-1]]))
    return edges[::-1]


def _chain(
    costs: Sequence[Matrix], crossing: Sequence[Matrix], *, limit: float | None
) -> tuple[Matrix, list[np.ndarray]]:
    """Least cost to reach each edge after all parts, and for every part the edge it came from.

    The cost of a chain is its largest cost; with a limit it is the sum, and nothing may cost more than the limit.
    """
    join = np.maximum if limit is None else np.add
    count = costs[0].shape[0]
    reached = np.full(count, np.inf)
    reached[0] = 0.0
    origins = []
    options = np.empty_like(costs[0])
    for p, cost in enumerate(costs):
        if p > 0:
            reached = join(reached, crossing[p - 1])
            if limit is not None:
                reached[crossing[p - 1] > limit] = np.inf
        join(reached[:, None], cost, out=options)
        if limit is not None:
            np.putmask(options, cost > limit, np.inf)
        origin = np.argmin(options, axis=0)
        reached = options[origin, np.arange(count)]
        origins.append(origin)
    return reached, origins
