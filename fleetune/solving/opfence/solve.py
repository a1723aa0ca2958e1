"""A problem of kind "opfence" solved by a method's name."""

import time
from importlib import import_module

import numpy as np

from fleetune.errors import Refused
from fleetune.solving.opfence.bound import lower_bound_s
from fleetune.solving.opfence.case import Case, Place
from fleetune.solving.opfence.communities import communities
from fleetune.solving.opfence.methods import SUMMARIES
from fleetune.solving.opfence.problem import Problem
from fleetune.solving.opfence.shortage import lacking
from fleetune.solving.opfence.solution import Link, Solution
from fleetune.solving.opfence.watch import Watch
from fleetune.solving.proofs import Floats

CLUSTERED = ("search", "opfence")
"""Methods that look at links, memories and the clock."""


def solve(problem: Problem, *, method: str = "search", time_limit_s: float | None = None, seed: int = 0) -> Solution:
    """A plan by one of the methods.

    `time_limit_s`, from now: None does a fixed amount of work; else `search` goes on until then, and `opfence` ends by
    then. Where nothing that fits is found yet, a second is spent looking for it, however short the limit. Raises
    Refused for an unknown method; Infeasible, with the operator or device and the bytes it lacks, where a method that
    heeds memory finds nothing.
    """
    if method not in SUMMARIES:
        raise Refused(f"method: {method!r} is not known; allowed are {', '.join(SUMMARIES)}")
    started, watch = time.perf_counter(), Watch(time_limit_s if method in CLUSTERED else None)
    case = Case(problem)
    planner = import_module(f"fleetune.solving.opfence.methods.{method.replace('-', '_')}")
    if method == "search":
        place, bound_s = planner.plan(case, seed, watch)
        cost_s = case.cost_s(place)
    else:
        place = planner.plan(case, seed, watch) if method in CLUSTERED else planner.plan(case, seed)
        cost_s = case.cost_s(place)
        bound_s = lower_bound_s(case, cost_s, watch)
    reason = lacking(case, place)
    names = [device.name for device in problem.devices]
    clusters = communities(case, seed) if method in CLUSTERED else [list(range(case.devices))]
    return Solution(
        method=method,
        feasible=not reason,
        reason=reason,
        objective=cost_s,
        lower_bound=min(bound_s, cost_s),
        solve_s=time.perf_counter() - started,
        deterministic=not watch.limited,
        clusters=tuple(tuple(names[device] for device in cluster) for cluster in clusters),
        placement={x.name: names[device] for x, device in zip(problem.operators, place.tolist(), strict=True)},
        links=links(case, place),
    )


def links(case: Case, place: Place) -> tuple[Link, ...]:
    """What each link carries of a micro-batch, and how much it is thinned."""
    traffic = case.traffic(place)
    sent, ratios = traffic.dense_bytes, np.ones(len(traffic.dense_bytes))
    if case.codec.ratio:
        dense_s = case.dense_s(traffic)
        asked = case.codec.ratios(dense_s, float(dense_s.max(initial=0.0)))
        sent, thin = case.codec.sent(traffic.dense_bytes, asked)
        ratios = np.where(thin, asked, 1.0)
    return tuple(
        _link(case, ends, numbers)
        for ends, numbers in zip(
            np.stack([traffic.sender, traffic.receiver], axis=1).tolist(),
            np.stack([sent, ratios], axis=1),
            strict=True,
        )
    )


def _link(case: Case, ends: list[int], numbers: Floats) -> Link:
    """ends: sender and receiver; numbers: bytes on the wire and ratio."""
    sender, receiver = (case.problem.devices[device].name for device in ends)
    size, ratio = numbers.tolist()
    return {"from": sender, "to": receiver, "bytes": int(size) if size == int(size) else size, "ratio": ratio}
