"""asteroid: the paper's planner, as written.

Ye, S. et al.: Asteroid: Resource-Efficient Hybrid Pipeline Parallelism for Collaborative DNN Training on Heterogeneous
Edge Devices. MobiCom 2024. doi:10.1145/3636534.3649363. Algorithm 1 deals the samples of a group, Algorithm 2 finds
stages and groups by dynamic programming over eq. (4)-(11).

It respects memory, uneven devices and links. It takes the devices in descending order of memory, groups neighbours of
that order only, uses every device, keeps one best sub-pipeline per state, and minimises its own formula instead of the
exact simulation (`search` lifts these limits). Where `warmup` is `free` it takes the paper's 2(P-p)-1.
"""

import numpy as np

from fleetune.errors import Infeasible
from fleetune.solving.hpp.draft import Draft
from fleetune.solving.hpp.instance import Instance, Ints
from fleetune.solving.hpp.pipeline_program import PipelineProgram, coarse_edges

COARSE = 24
"""Pieces of the first, coarse pass, whose result bounds the second."""


def plan(instance: Instance, stopped: Ints | None = None) -> Draft:
    """The plan with the least eq. (4).

    A coarse pass on few pieces gives an upper bound for the pass on all layers, which skips what cannot be part of a
    better round. That changes no answer: where the bound is missed, the second pass is repeated without it. Infeasible
    where no plan of all devices fits their memories, or where another thread set `stopped` ([1]) before one was found.
    """
    order = np.argsort(-instance.memory_bytes, kind="stable")
    edges = np.arange(instance.layers + 1)
    bound_s = np.inf
    if instance.layers > COARSE:
        bound_s = float(np.min(PipelineProgram(instance, order, coarse_edges(instance, COARSE)).totals()))
    program = PipelineProgram(instance, order, edges, bound_s * (1 + 1e-9), stopped)
    if np.min(program.totals()) > bound_s and program.whole:
        program = PipelineProgram(instance, order, edges, stopped=stopped)
    if not program.whole:
        raise Infeasible("asteroid: time was up before a plan was found; give more")
    stages = int(np.argmin(program.totals()))
    if not np.isfinite(program.totals()[stages]):
        raise Infeasible(
            f"asteroid: no plan that uses all {instance.devices} devices in descending order of memory fits their "
            "memories; the method search leaves devices out and tries other orders"
        )
    return program.draft(stages)
