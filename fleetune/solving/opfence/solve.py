"""Solver of kind "opfence": dispatch by method name."""

import numpy as np

from fleetune.arrays import Floats
from fleetune.solving.limits import Deadline
from fleetune.solving.opfence.bound import lower_bound_s
from fleetune.solving.opfence.clusters import communities
from fleetune.solving.opfence.infeasibility import memory_violation
from fleetune.solving.opfence.instance import Instance, Placement
from fleetune.solving.opfence.methods import SUMMARIES, opfence, search
from fleetune.solving.opfence.methods.opfence import equal_compute, equal_modules
from fleetune.solving.opfence.problem import Link, Problem, Solution
from fleetune.solving.validation import validate_choice

CLUSTER_METHODS = ("search", "opfence")
"""Methods that respect links, memory and the time limit."""


def solve(problem: Problem, *, method: str = "search", time_limit_s: float | None = None, seed: int = 0) -> Solution:
    """Return a plan by one of the methods.

    time_limit_s: None does a fixed amount of work; else `search` continues until then, and `opfence` ends by then. If
    nothing that fits is found yet, the search for it takes up to a second, however short the limit. Raises Refused for
    an unknown method; Infeasible, with the operator or device and the bytes it lacks, if a method that respects memory
    finds nothing.
    """
    validate_choice("method", method, SUMMARIES)
    deadline = Deadline(time_limit_s if method in CLUSTER_METHODS else None)
    instance = Instance(problem)
    if method == "search":
        placement, bound_s = search.plan(instance, seed, deadline)
        cost_s = instance.cost_s(placement)
    else:
        placement = _placement(instance, method, seed, deadline)
        cost_s = instance.cost_s(placement)
        bound_s = lower_bound_s(instance, cost_s, deadline)
    reason = memory_violation(instance, placement)
    names = [device.name for device in problem.devices]
    clusters = communities(instance, seed) if method in CLUSTER_METHODS else [list(range(instance.devices))]
    return Solution(
        method=method,
        feasible=not reason,
        reason=reason,
        objective=cost_s,
        lower_bound=min(bound_s, cost_s),
        solve_s=deadline.elapsed_s(),
        deterministic=not deadline.limited,
        clusters=tuple(tuple(names[device] for device in cluster) for cluster in clusters),
        placement={x.name: names[device] for x, device in zip(problem.operators, placement.tolist(), strict=True)},
        links=links(instance, placement),
    )


def _placement(instance: Instance, method: str, seed: int, deadline: Deadline) -> Placement:
    if method == "opfence":
        return opfence.plan(instance, seed, deadline)
    return (equal_modules if method == "equal-modules" else equal_compute)(instance, seed)


def links(instance: Instance, placement: Placement) -> tuple[Link, ...]:
    """Return the bytes and the compression ratio of each link per micro-batch."""
    traffic = instance.traffic(placement)
    sent, ratios = traffic.dense_bytes, np.ones(len(traffic.dense_bytes))
    if instance.codec.ratio:
        dense_s = instance.dense_s(traffic)
        wanted = instance.codec.ratios(dense_s, float(dense_s.max(initial=0.0)))
        sent, compressed = instance.codec.sent(traffic.dense_bytes, wanted)
        ratios = np.where(compressed, wanted, 1.0)
    return tuple(
        _link(instance, ends, numbers)
        for ends, numbers in zip(
            np.stack([traffic.sender, traffic.receiver], axis=1).tolist(),
            np.stack([sent, ratios], axis=1),
            strict=True,
        )
    )


def _link(instance: Instance, ends: list[int], numbers: Floats) -> Link:
    """ends: sender and receiver; numbers: bytes on the wire and ratio."""
    sender, receiver = (instance.problem.devices[device].name for device in ends)
    size, ratio = numbers.tolist()
    return {"from": sender, "to": receiver, "bytes": int(size) if size == int(size) else size, "ratio": ratio}
