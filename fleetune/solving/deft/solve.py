"""A problem of kind "deft" solved by a method's name."""

import time
from importlib import import_module
from typing import Literal, cast

from fleetune.errors import Refused
from fleetune.solving.deft.bottleneck import bottleneck
from fleetune.solving.deft.case import Case, Draft
from fleetune.solving.deft.methods import SUMMARIES
from fleetune.solving.deft.methods.bisection import optimum
from fleetune.solving.deft.problem import Problem
from fleetune.solving.deft.shortage import lacking
from fleetune.solving.deft.solution import Solution


def solve(problem: Problem, *, method: str = "bisection", time_limit_s: float | None = None, seed: int = 0) -> Solution:
    """A plan by one of the methods, with what no plan can pass.

    All end by themselves, and nothing is random: `time_limit_s` and `seed` change nothing. Raises Refused for an
    unknown method, and for `dual-ascent` where bandwidth is equal; Infeasible, with the blocks and the bytes, where
    memory allows no allocation.
    """
    if method not in SUMMARIES:
        raise Refused(f"method: {method!r} is not known; allowed are {', '.join(SUMMARIES)}")
    started = time.perf_counter()
    case = Case(problem)
    draft: Draft = import_module(f"fleetune.solving.deft.methods.{method.replace('-', '_')}").plan(case)
    low_s = _low_s(case) if draft.low_s is None else draft.low_s
    reason = lacking(problem, draft.devices.tolist())
    return Solution(
        method=method,
        feasible=not reason,
        reason=reason,
        objective=case.latency_s(draft),
        lower_bound=low_s,
        solve_s=time.perf_counter() - started,
        devices=tuple(draft.devices.tolist()),
        bandwidth_hz=tuple(draft.bandwidth_hz),
        solved_by=cast(Literal["crunch", "matching"] | None, draft.solved_by),
        trace=draft.trace,
    )


def _low_s(case: Case) -> float:
    """No plan is faster."""
    equal = case.problem.bandwidth == "equal"
    return bottleneck(case.even_s).threshold if equal else optimum(case).low_s
