"""Clusters of devices with fast links: detection, connected parts of the graph, and orders of devices.

Clusters are Louvain communities (Blondel et al., 2008, as in FusionLLM section 4). Each takes a connected part of the
graph, and device orders cross slow links once, by their best pair of devices.
"""

from itertools import permutations

import numpy as np

from fleetune.arrays import Floats, Ints
from fleetune.solving.limits import NO_DEADLINE, Deadline
from fleetune.solving.opfence.graph import components
from fleetune.solving.opfence.instance import MIN_GAIN, Instance, LinearOrder, Placement, sum_by_group

INFINITE_LINK_SPEEDUP = 10.0
"""Links of infinite bandwidth count as this many times the fastest finite one."""


def communities(instance: Instance, seed: int) -> list[list[int]]:
    """Return the Louvain communities of the bandwidth graph, each ascending, by first device."""
    if instance.devices == 1:
        return [[0]]
    from networkx import Graph
    from networkx.algorithms.community import louvain_communities

    weight = bandwidth(instance)
    graph = Graph()
    graph.add_nodes_from(range(instance.devices))
    one, other = np.triu_indices(instance.devices, 1)
    graph.add_weighted_edges_from(zip(one.tolist(), other.tolist(), weight[one, other].tolist(), strict=True))
    return sorted(sorted(cluster) for cluster in louvain_communities(graph, seed=seed))


def bandwidth(instance: Instance) -> Floats:
    """Return [device, device] the mean bandwidth of both directions relative to the fastest link."""
    with np.errstate(divide="ignore", over="ignore"):
        speed = 1 / instance.beta
    np.fill_diagonal(speed, 0.0)
    infinite = np.isinf(speed)
    top = float(speed[~infinite].max(initial=0.0)) or 1.0
    speed[infinite] = INFINITE_LINK_SPEEDUP * top
    shared: Floats = (speed + speed.T) / (2 * top)
    return shared


def excess_components(instance: Instance, placement: Placement, cluster_of: Ints) -> int:
    """Return the number of connected components beyond one per cluster; cluster_of: [device] its cluster."""
    cluster = cluster_of[placement]
    return sum(
        len(components(np.flatnonzero(cluster == number).tolist(), instance.parents)) - 1
        for number in np.unique(cluster).tolist()
    )


def reconnect_clusters(
    instance: Instance, placement: Placement, cluster_of: Ints, deadline: Deadline = NO_DEADLINE
) -> Placement:
    """Move the smaller components of each cluster to the cluster they share most edges with, within memory.

    Every move removes at least one component. Stops at the deadline with the placement reached so far.
    """
    found = placement.copy()
    stuck: set[tuple[int, ...]] = set()
    while not deadline.expired:
        part = _smallest_surplus_component(instance, found, cluster_of, stuck)
        if part is None:
            return found
        device = _adjacent_device(instance, found, cluster_of, part)
        if device is None:
            stuck.add(tuple(part))
        else:
            found[part] = device
    return found


def _smallest_surplus_component(
    instance: Instance, placement: Placement, cluster_of: Ints, stuck: set[tuple[int, ...]]
) -> list[int] | None:
    """Return the smallest surplus component that is not `stuck`, or None."""
    cluster = cluster_of[placement]
    surplus = [
        part
        for number in np.unique(cluster).tolist()
        for part in components(np.flatnonzero(cluster == number).tolist(), instance.parents)[1:]
        if tuple(part) not in stuck
    ]
    return min(surplus, key=lambda part: (len(part), part)) if surplus else None


def _adjacent_device(instance: Instance, placement: Placement, cluster_of: Ints, part: list[int]) -> int | None:
    """Return the device outside the cluster with memory for the part and the most edges to it, or None."""
    own = cluster_of[placement[part[0]]]
    edge_count: dict[int, int] = {}
    for operator in part:
        for other in instance.parents[operator] + instance.users[operator]:
            device = int(placement[other])
            if cluster_of[device] != own:
                edge_count[device] = edge_count.get(device, 0) + 1
    held = sum_by_group(instance.memory_bytes, placement, instance.devices)
    need = float(instance.memory_bytes[part].sum())
    candidates = [device for device in edge_count if held[device] + need <= instance.budget_bytes[device]]
    return min(candidates, key=lambda device: (-edge_count[device], device)) if candidates else None


MAX_PERMUTED_CLUSTERS = 6
"""Number of clusters up to which every order is tried."""


def median_hop_s(instance: Instance, line: LinearOrder) -> Floats:
    """Return [from, to] the seconds of sending the outputs that cross a median cut."""
    inner = line.crossing_bytes[1:-1]
    typical, count = (float(np.median(inner)), float(np.median(line.crossing[1:-1]))) if len(inner) else (0.0, 1.0)
    found: Floats = instance.alpha * count + instance.beta * typical
    return found


def device_orders(
    hops: Floats, clusters: list[list[int]], most: int, deadline: Deadline = NO_DEADLINE
) -> list[list[int]]:
    """Return up to `most` orders of all devices, cluster by cluster, quickest links first."""
    between = np.array([[hops[np.ix_(a, b)].min() for b in clusters] for a in clusters])
    if len(clusters) <= MAX_PERMUTED_CLUSTERS:
        orders = [list(order) for order in permutations(range(len(clusters)))]
    else:
        orders = [_nearest_neighbour_path(between, list(range(len(clusters))), first) for first in range(len(clusters))]
        orders += [order[::-1] for order in orders]
        orders = [_insertion_search(between, order, deadline) for order in orders]
    ranked = sorted((_path_length(between, order), order) for order in orders)
    chosen = [order for at, (_, order) in enumerate(ranked) if order not in [x for _, x in ranked[:at]]]
    return [_devices(hops, [clusters[c] for c in order]) for order in chosen[:most]]


def _devices(hops: Floats, clusters: list[list[int]]) -> list[int]:
    """Return a nearest-neighbour path through each cluster, from the device that is entered best."""
    found: list[int] = []
    for at, cluster in enumerate(clusters):
        if found:
            start = min(cluster, key=lambda device: (hops[found[-1], device], device))
        else:
            start = _far_from_exit(hops, cluster, clusters[at + 1 : at + 2])
        found += _nearest_neighbour_path(hops, cluster, start)
    return found


def _far_from_exit(hops: Floats, cluster: list[int], following: list[list[int]]) -> int:
    """Return a start device: the one least suited as the exit to the next cluster."""
    if not following:
        return cluster[0]
    leaving = {device: float(hops[device, following[0]].min()) for device in cluster}
    return max(cluster, key=lambda device: (leaving[device], -device))


def _nearest_neighbour_path(length: Floats, nodes: list[int], first: int) -> list[int]:
    """Return the path from `first` that always goes to the nearest node left."""
    order, left = [first], [node for node in nodes if node != first]
    while left:
        nearest = min(left, key=lambda node: (length[order[-1], node], node))
        order.append(nearest)
        left.remove(nearest)
    return order


def _path_length(length: Floats, order: list[int]) -> float:
    return float(length[order[:-1], order[1:]].sum())


def _insertion_search(length: Floats, order: list[int], deadline: Deadline) -> list[int]:
    """Move single nodes along the path while that shortens it and the deadline allows."""
    best = _path_length(length, order)
    improved = True
    while improved:
        improved = False
        for at in range(len(order)):
            if deadline.expired:
                return order
            rest = order[:at] + order[at + 1 :]
            tried = [rest[:to] + [order[at]] + rest[to:] for to in range(len(order))]
            lengths = [_path_length(length, option) for option in tried]
            to = int(np.argmin(lengths))
            if lengths[to] < best * (1 - MIN_GAIN):
                order, best, improved = tried[to], lengths[to], True
    return order
