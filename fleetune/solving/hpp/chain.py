"""The model as a chain of runs of layers."""

import numpy as np

from fleetune.solving.hpp.case import Case, Ints


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
