"""Cutting a chain of layers: into runs of about equal work, and optimally into parts."""

from collections.abc import Callable

import numpy as np

from fleetune.arrays import Floats, Ints
from fleetune.solving.hpp.instance import Instance

Cost = Callable[[int], Floats]


def edges_at(position: Floats, crossing: Floats, targets: Floats, reach: float, *, nearest: bool = False) -> list[int]:
    """Both ends of a chain, and for each target the inner edge within `reach` of it that the fewest bytes cross.

    position, crossing: [edge], ascending positions and bytes across a cut there. Of edges with equal bytes the first is
    taken; if none is within reach, the first at or behind the target. With `nearest`, both times the nearest.
    """
    found = {0, len(position) - 1}
    for target in targets:
        distance = np.abs(position - target)
        near = 1 + np.flatnonzero(distance[1:-1] <= reach)
        if len(near):
            order = np.lexsort((distance[near] if nearest else near, crossing[near]))
            found.add(int(near[order[0]]))
        else:
            found.add(int(np.argmin(distance)) if nearest else int(np.searchsorted(position[:-1], target)))
    return sorted(found)


def run_edges(instance: Instance, most: int) -> Ints:
    """Edges [runs + 1] that join the layers into exactly min(layers, most) runs of about equal work and layer count.

    Methods that need at least one run per device use this; `coarse_edges` may give fewer runs, of more equal work.

    Each run begins at the edge within half a run of its ideal place where least crosses.
    """
    if instance.layers <= most:
        return np.arange(instance.layers + 1)
    work = np.mean(instance.forward_s[:, -1] + instance.backward_s[:, -1], axis=0)
    place = np.arange(instance.layers + 1) / instance.layers + (work / work[-1] if work[-1] > 0 else 0.0)
    crossing = instance.output_bytes + instance.gradient_bytes
    edges = [0]
    for k in range(1, most):
        low, high = np.searchsorted(place, place[-1] * (k + np.array([-0.5, 0.5])) / most)
        low = min(max(int(low), edges[-1] + 1), instance.layers - (most - k))
        high = min(max(int(high), low + 1), instance.layers - (most - k) + 1)
        edges.append(low + int(np.argmin(crossing[low:high])))
    return np.array([*edges, instance.layers])


def coarse_edges(instance: Instance, most: int) -> Ints:
    """Edges of about `most` runs of layers of equal work, cut where least crosses within half a run."""
    if instance.layers <= most:
        return np.arange(instance.layers + 1)
    work = np.mean(instance.best_s, axis=0)
    crossing = (instance.output_bytes + instance.gradient_bytes).astype(np.float64)
    return np.array(edges_at(work, crossing, work[-1] * np.arange(1, most) / most, work[-1] / most / 2), np.int64)


def best_cuts(parts: int, cost: Cost, crossing: Cost | None = None) -> list[int] | None:
    """Edges [0, e1, ..., n] that cut a chain into `parts` runs with the least largest cost; None if it is infinite.

    cost(p)[i, j] is the cost of run (i, j) as part p, read only where i < j; crossing(p)[j] is the cost of a cut at
    edge j between parts p and p+1. Exact dynamic program over edges, O(parts * n^2). Ties are broken by the least sum
    of costs, then by the earliest cuts.
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
    """Least cost to reach each edge after all parts, and per part the edge that each was reached from.

    Costs combine by maximum; with a limit they add up, and none may exceed the limit.
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
