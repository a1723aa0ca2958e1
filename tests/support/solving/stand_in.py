"""A kind of problem with a stand-in solver, for tests of the common interface and of the command line."""

import dataclasses
from typing import Any

from fleetune.errors import Infeasible
from fleetune.solving.hpp import HPP
from fleetune.solving.hpp.problem import Problem, Share, Solution, Stage
from tests.support.solving.named_tuples import changed

METHODS = {"best": "the stand-in's best", "blind": "ignores memory", "never": "finds nothing"}


def solution(**changes: Any) -> Solution:
    """A plan of two stages for the drawn problem."""
    plan = Solution(
        method="best",
        feasible=True,
        objective=0.0125,
        lower_bound=0.01,
        solve_s=0.25,
        deterministic=True,
        stages=(
            Stage(layers=(0, 2), devices=(Share(name="nano-0", samples=1), Share(name="nano-1", samples=1)), warmup=3),
            Stage(layers=(2, 3), devices=(Share(name="tx2", samples=2),), warmup=1),
        ),
        formula_round_s=0.012,
        memory_bytes={"nano-0": 8600, "nano-1": 8600, "tx2": 4400},
    )
    return dataclasses.replace(plan, **changes)


def _solve(problem: Problem, *, method: str, time_limit_s: float | None, seed: int) -> Solution:
    """Return a plan whose bound and time echo the options (best), or one that lacks memory (blind)."""
    if method == "never":
        raise Infeasible("device nano-0 lacks 500 bytes for layer embed alone; add memory or take fewer samples")
    if method == "blind":
        reason = "device nano-1 lacks 600 bytes for layers embed to body"
        return solution(method=method, feasible=False, reason=reason, lower_bound=None)
    return solution(lower_bound=float(seed) or None, solve_s=time_limit_s or 0.25)


KIND = changed(HPP, methods=METHODS, solve=_solve)
