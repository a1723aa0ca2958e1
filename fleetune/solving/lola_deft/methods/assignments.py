"""Blocks assigned to devices by one rule: `crunch`, `bisection`, and the paper's benchmark schemes.

crunch, the optimum for equal parts of the band (P1), is Algorithm 2 of Wu, H., Chen, X., Huang, K.: Resource Management
for Low-latency Cooperative Fine-tuning of Foundation Models at the Network Edge, 2024 (LoLa-DEFT). If latency or memory
does not grow with depth on some device, counting proves nothing: the plan is then made by matching, and says so.

bisection (ours), the optimum for blocks and bandwidth together (P2): to finish by T, block l on device k needs the
share upload_s[k] / (T - compute_s[k, l]) of the band. A threshold T is feasible if and only if the cheapest assignment
(Hungarian method) needs at most the whole band, and feasibility is monotone in T. So the least T lies between an
infeasible threshold and the latency of the best allocation found. Each allocation found finishes exactly when its
shares add up to the band, which is the new upper end: Newton's method on matchings, with bisection steps between so
that their number is bounded. LoLa-DEFT (Section V) calls this problem NP-hard and ascends its dual. With equal
bandwidth it is an exact bottleneck matching.

compute-aware (the paper's, Section VI-A4): the fastest devices take part, and the more demanding a block is, the faster
its device. It ignores channels and memory, so that its plan may hit "the memory wall". The paper has one factor f_k per
device; measured times are a table, so a device's speed is judged by the sum of its row and a block's demand by the sum
of its column.

channel-aware (the paper's "communication-aware", same section): the devices with the best channels take part, and the
deeper a block is, the better its channel. It ignores speeds and memory. Both divide the band equally.
"""

from typing import NamedTuple

import numpy as np

from fleetune.arrays import Floats
from fleetune.solving.lola_deft.allocation import (
    bottleneck_allocation,
    bottleneck_matching,
    min_cost_assignment,
    min_latency_s,
    with_best_bandwidth,
)
from fleetune.solving.lola_deft.instance import Allocation, Instance, Ints


def crunch(instance: Instance) -> Allocation:
    """Return the optimum with equal parts; on a joint problem it is feasible, not optimal."""
    found = bottleneck_allocation(instance.equal_part_s)
    bound_s = found.threshold if instance.problem.bandwidth == "equal" else None
    return instance.with_equal_bandwidth(found.devices, bound_s, found.solved_by)


TOLERANCE = 1e-12
"""Final relative distance of the ends: far above the rounding of the Hungarian method, far below 1e-9."""
BISECT_EVERY = 3
"""Every third step bisects."""


class Optimum(NamedTuple):
    """The best allocation and its proof."""

    devices: Ints
    bound_s: float
    """Proven lower bound: infeasible, or the optimum itself."""
    assignments: int
    """Assignment problems solved to get within TOLERANCE."""


def bisection(instance: Instance) -> Allocation:
    """Return the optimum of the problem as stated."""
    if instance.problem.bandwidth == "equal":
        found = bottleneck_matching(instance.equal_part_s)
        return instance.with_equal_bandwidth(found.devices, found.threshold, found.solved_by)
    best = joint_optimum(instance)
    allocations = (
        with_best_bandwidth(instance, best.devices),
        instance.with_equal_bandwidth(bottleneck_allocation(instance.equal_part_s).devices),
    )
    allocation = min(allocations, key=instance.latency_s)  # equal parts may be optimal, and are free of rounding
    return allocation._replace(bound_s=min(best.bound_s, instance.latency_s(allocation)))


def joint_optimum(instance: Instance) -> Optimum:
    """Return the optimum over blocks and bandwidth."""
    devices = bottleneck_allocation(instance.equal_part_s).devices
    high_s = min_latency_s(instance, devices)
    alone_s = np.where(instance.fits, instance.compute_s + instance.upload_s, np.inf)
    bound_s, solved = bottleneck_allocation(alone_s).threshold, 0
    while bound_s < high_s * (1 - TOLERANCE):
        solved += 1
        halves = solved % BISECT_EVERY == 0
        at_s = max(bound_s, min((bound_s + high_s) / 2 if halves else np.inf, high_s * (1 - TOLERANCE)))
        found = cheapest_allocation(instance, at_s)
        found_s = np.inf if found is None else min_latency_s(instance, found)
        if found is not None and found_s < high_s:
            devices, high_s = found, found_s
        elif at_s > bound_s:
            bound_s = at_s
        else:
            break
    while (found := cheapest_allocation(instance, high_s)) is not None and min_latency_s(instance, found) < high_s:
        devices, high_s = (
            found,
            min_latency_s(instance, found),
        )  # converge fully, so that no other method is ahead by one bit
    return Optimum(devices, min(bound_s, high_s), solved)


def cheapest_allocation(instance: Instance, at_s: float) -> Ints | None:
    """Return [block] the devices that finish by `at_s` with the least bandwidth, or None if the band is not enough."""
    gaps_s = at_s - instance.compute_s
    usable = instance.fits & (gaps_s >= instance.upload_s) & (gaps_s > 0)
    parts = np.divide(instance.upload_s, gaps_s, out=np.full_like(gaps_s, np.inf), where=usable)
    devices = min_cost_assignment(parts)
    if devices is None or np.sum(parts[np.arange(instance.blocks), devices]) > 1:
        return None
    return devices


def compute_aware(instance: Instance) -> Allocation:
    """Return the compute-aware plan. Ties: the device of the lower index and the block farther from the output
    first."""
    relative = instance.compute_s / (np.max(instance.compute_s) or 1.0)  # sums of seconds may overflow
    return instance.with_equal_bandwidth(rank_match(np.sum(relative, axis=1), np.sum(relative, axis=0)))


def rank_match(demands: Floats, costs: Floats) -> Ints:
    """Return [block] its device: the most demanding block on the device of least cost, and so on."""
    blocks = np.lexsort((-np.arange(len(demands)), -demands))
    devices = np.empty(len(demands), np.intp)
    devices[blocks] = np.argsort(costs, kind="stable")[: len(demands)]
    return devices


def channel_aware(instance: Instance) -> Allocation:
    """Return the channel-aware plan, with depth as the only measure of demand."""
    return instance.with_equal_bandwidth(rank_match(np.arange(instance.blocks, dtype=np.float64), -instance.efficiency))
