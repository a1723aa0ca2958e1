"""Clusters in a row, and devices in a row inside each: slow links are crossed once, by their best pair of devices."""

from itertools import permutations

import numpy as np

from fleetune.solving.opfence.case import Case
from fleetune.solving.opfence.line import Line
from fleetune.solving.opfence.watch import ENDLESS, Watch
from fleetune.solving.proofs import Floats

ALL_ORDERS = 6
"""Clusters of which every order is looked at."""


def hop_s(case: Case, line: Line) -> Floats:
    """[from, to]: seconds of sending what crosses a middling cut."""
    inner = line.crossing_bytes[1:-1]
    typical, count = (float(np.median(inner)), float(np.median(line.crossing[1:-1]))) if len(inner) else (0.0, 1.0)
    found: Floats = case.alpha * count + case.beta * typical
    return found


def sequences(hops: Floats, clusters: list[list[int]], most: int, watch: Watch = ENDLESS) -> list[list[int]]:
    """Up to `most` rows of all devices, cluster by cluster, those with the quickest links first."""
    between = np.array([[hops[np.ix_(a, b)].min() for b in clusters] for a in clusters])
    if len(clusters) <= ALL_ORDERS:
        orders = [list(order) for order in permutations(range(len(clusters)))]
    else:
        orders = [_nearest(between, list(range(len(clusters))), first) for first in range(len(clusters))]
        orders += [order[::-1] for order in orders]
        orders = [_exchanged(between, order, watch) for order in orders]
    ranked = sorted((_length(between, order), order) for order in orders)
    chosen = [order for at, (_, order) in enumerate(ranked) if order not in [x for _, x in ranked[:at]]]
    return [_devices(hops, [clusters[c] for c in order]) for order in chosen[:most]]


def _devices(hops: Floats, clusters: list[list[int]]) -> list[int]:
    """Nearest neighbours from the pair by which each cluster is entered best."""
    found: list[int] = []
    for at, cluster in enumerate(clusters):
        if found:
            start = min(cluster, key=lambda device: (hops[found[-1], device], device))
        else:
            start = _far_from_exit(hops, cluster, clusters[at + 1 : at + 2])
        found += _nearest(hops, cluster, start)
    return found


def _far_from_exit(hops: Floats, cluster: list[int], following: list[list[int]]) -> int:
    """Where to begin: not at the device that the next cluster is reached from best."""
    if not following:
        return cluster[0]
    leaving = {device: float(hops[device, following[0]].min()) for device in cluster}
    return max(cluster, key=lambda device: (leaving[device], -device))


def _nearest(length: Floats, nodes: list[int], first: int) -> list[int]:
    """From the first always on to the nearest node left."""
    order, left = [first], [node for node in nodes if node != first]
    while left:
        nearest = min(left, key=lambda node: (length[order[-1], node], node))
        order.append(nearest)
        left.remove(nearest)
    return order


def _length(length: Floats, order: list[int]) -> float:
    return float(length[order[:-1], order[1:]].sum())


def _exchanged(length: Floats, order: list[int], watch: Watch) -> list[int]:
    """Single nodes moved elsewhere in the row for as long as that shortens it and the watch lets it."""
    best = _length(length, order)
    improved = True
    while improved:
        improved = False
        for at in range(len(order)):
            if watch.over:
                return order
            rest = order[:at] + order[at + 1 :]
            tried = [rest[:to] + [order[at]] + rest[to:] for to in range(len(order))]
            lengths = [_length(length, option) for option in tried]
            to = int(np.argmin(lengths))
            if lengths[to] < best * (1 - 1e-12):
                order, best, improved = tried[to], lengths[to], True
    return order
