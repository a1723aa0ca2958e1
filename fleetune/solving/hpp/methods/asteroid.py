"""asteroid: the paper's planner, as written.

Ye, S. et al.: Asteroid: Resource-Efficient Hybrid Pipeline Parallelism for Collaborative DNN Training on Heterogeneous
Edge Devices. MobiCom 2024. doi:10.1145/3636534.3649363. Algorithm 1 deals the samples of a group, Algorithm 2 finds
stages and groups by dynamic programming over eq. (4)-(11).

It respects memory, uneven devices and links. It takes the devices in descending order of memory, groups neighbours of
that order only, uses every device, keeps one best sub-pipeline per state, and trusts its own formula instead of the
exact simulation: that is what `search` does better. Where `warmup` is `free` it takes the paper's 2(P-p)-1.
"""

import numpy as np

from fleetune.errors import Infeasible
from fleetune.solving.hpp.case import Case, Ints
from fleetune.solving.hpp.draft import Draft
from fleetune.solving.hpp.dynamic import Dynamic, pieces

COARSE = 24
"""Pieces of the first, rough pass, whose result bounds the second."""


def plan(case: Case, stopped: Ints | None = None) -> Draft:
    """The plan with the least eq. (4). Infeasible where no plan of all devices fits their memories, or where another
    thread set `stopped` ([1]) before it was found.

    A rough pass on a few pieces gives a round that the pass on all layers need not exceed: what cannot be part of a
    better one is skipped there, which changes no answer (where the rough bound is missed, all is done again without).
    """
    order = np.argsort(-case.memory_bytes, kind="stable")
    edges = np.arange(case.layers + 1)
    bound_s = np.inf
    if case.layers > COARSE:
        bound_s = float(np.min(Dynamic(case, order, pieces(case, COARSE)).totals()))
    dynamic = Dynamic(case, order, edges, bound_s * (1 + 1e-9), stopped)
    if np.min(dynamic.totals()) > bound_s and dynamic.whole:
        dynamic = Dynamic(case, order, edges, stopped=stopped)
    if not dynamic.whole:
        raise Infeasible("asteroid: time was up before a plan was found; give more")
    stages = int(np.argmin(dynamic.totals()))
    if not np.isfinite(dynamic.totals()[stages]):
        raise Infeasible(
            f"asteroid: no plan that uses all {case.devices} devices in descending order of memory fits their "
            "memories; the method search leaves devices out and tries other orders"
        )
    return dynamic.draft(stages)
