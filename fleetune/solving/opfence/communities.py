"""Clusters of devices that talk fast with each other (Blondel et al., 2008, as FusionLLM section 4 uses them)."""

import numpy as np

from fleetune.solving.opfence.case import Case
from fleetune.solving.proofs import Floats

FASTEST = 10.0
"""Links without end to their bandwidth count as so many times the fastest that has one."""


def communities(case: Case, seed: int) -> list[list[int]]:
    """Louvain communities of the bandwidth graph, each ascending, in order of their first device."""
    if case.devices == 1:
        return [[0]]
    from networkx import Graph
    from networkx.algorithms.community import louvain_communities

    weight = bandwidth(case)
    graph = Graph()
    graph.add_nodes_from(range(case.devices))
    one, other = np.triu_indices(case.devices, 1)
    graph.add_weighted_edges_from(zip(one.tolist(), other.tolist(), weight[one, other].tolist(), strict=True))
    return sorted(sorted(cluster) for cluster in louvain_communities(graph, seed=seed))


def bandwidth(case: Case) -> Floats:
    """[device, device], symmetric: mean of both directions, as a share of the fastest."""
    with np.errstate(divide="ignore", over="ignore"):
        speed = 1 / case.beta
    np.fill_diagonal(speed, 0.0)
    endless = np.isinf(speed)
    top = float(speed[~endless].max(initial=0.0)) or 1.0
    speed[endless] = FASTEST * top
    shared: Floats = (speed + speed.T) / (2 * top)
    return shared
