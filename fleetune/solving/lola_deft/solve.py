"""Solver of kind "deft": dispatch by method name."""

from collections.abc import Callable
from typing import Literal, cast

from fleetune.solving.limits import Deadline
from fleetune.solving.lola_deft.allocation import bottleneck_allocation
from fleetune.solving.lola_deft.instance import Allocation, Instance, memory_violation
from fleetune.solving.lola_deft.methods import SUMMARIES, dual_ascent
from fleetune.solving.lola_deft.methods.assignments import (
    bisection,
    channel_aware,
    compute_aware,
    crunch,
    joint_optimum,
)
from fleetune.solving.lola_deft.problem import Problem, Solution
from fleetune.solving.validation import validate_choice

PLANNERS: dict[str, Callable[[Instance], Allocation]] = {
    "bisection": bisection,
    "crunch": crunch,
    "dual-ascent": dual_ascent.plan,
    "compute-aware": compute_aware,
    "channel-aware": channel_aware,
}


def solve(problem: Problem, *, method: str = "bisection", time_limit_s: float | None = None, seed: int = 0) -> Solution:
    """Return a plan by one of the methods, with a lower bound.

    The methods are deterministic and need no limit: `time_limit_s` and `seed` have no effect. Raises Refused for an
    unknown method, and for `dual-ascent` if bandwidth is equal; Infeasible, with the blocks and the bytes, if memory
    allows no allocation.
    """
    validate_choice("method", method, SUMMARIES)
    clock = Deadline()
    instance = Instance(problem)
    allocation = PLANNERS[method](instance)
    bound_s = _bound_s(instance) if allocation.bound_s is None else allocation.bound_s
    reason = memory_violation(problem, allocation.devices.tolist())
    return Solution(
        method=method,
        feasible=not reason,
        reason=reason,
        objective=instance.latency_s(allocation),
        lower_bound=bound_s,
        solve_s=clock.elapsed_s(),
        devices=tuple(allocation.devices.tolist()),
        bandwidth_hz=tuple(allocation.bandwidth_hz),
        solved_by=cast(Literal["crunch", "matching"] | None, allocation.solved_by),
        trace=allocation.trace,
    )


def _bound_s(instance: Instance) -> float:
    """Return a lower bound on the latency of every plan."""
    equal = instance.problem.bandwidth == "equal"
    return bottleneck_allocation(instance.equal_part_s).threshold if equal else joint_optimum(instance).bound_s
