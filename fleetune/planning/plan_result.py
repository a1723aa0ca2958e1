"""Plans from cuts and shares, and their results: the round by the clock and its lower bound."""

from collections.abc import Sequence

import numpy as np

from fleetune.clock import Clock
from fleetune.contracts.plan import Lane, Plan, PlanResult, Segment, Share
from fleetune.contracts.profile import Unit
from fleetune.planning.strategy import Problem
from fleetune.solving.hpp.bound import priced_work_s

LANE = "main"


def segment(units: Sequence[Unit], shares: Sequence[tuple[str, int]], warmup: int) -> Segment:
    """A segment with `shares` as (device, samples) pairs."""
    return Segment(
        units=tuple(unit.name for unit in units),
        shares=tuple(Share(device=device, samples=samples) for device, samples in shares),
        warmup=warmup,
    )


def single_lane_plan(strategy: str, problem: Problem, segments: Sequence[Segment]) -> Plan:
    """A plan of one lane with these segments."""
    return Plan(
        strategy=strategy,
        micro_batch_samples=problem.micro_batch_samples,
        micro_batches=problem.micro_batches,
        lanes=(Lane(name=LANE, segments=tuple(segments)),),
    )


def plan_result(
    plan: Plan, problem: Problem, clock: Clock, citation: str, *, bound_s: float | None = None
) -> PlanResult:
    """The plan with its round by the clock and a lower bound, `bound_s` or else the problem's; `optimal` where both are
    equal."""
    objective = clock.round_s(plan)
    bound = lower_bound_s(problem, clock) if bound_s is None else bound_s
    met = objective <= bound * (1 + 1e-6)
    return PlanResult(
        plan=plan,
        objective=objective,
        lower_bound=bound,
        status="optimal" if met else "feasible",
        solve_s=0.0,
        method=plan.strategy,
        citation=citation,
    )


def lower_bound_s(problem: Problem, clock: Clock) -> float:
    """Lower bound in seconds of the round of any plan of any strategy; links and memory are not counted.

    `fleetune.solving.hpp.bound` has a tighter one for hybrid pipelines only.

    The largest of three bounds:

    1. Total work over total speed. With r(d, u) the least seconds per sample of unit u on device d at any share, and
       weights w(d) that sum to 1, a round takes at least the weighted mean of the devices' loads, which is at least
       samples · Σ_u min_d w(d) · r(d, u); the weights are the devices' shares of the fleet's speed.
    2. The same for each unit alone: a unit that cannot be divided is still allocated to devices.
    3. One micro-batch runs forward and backward through all units, each on its fastest device at its fastest share.

    A nanosecond per task is subtracted, since the clock rounds.
    """
    samples = problem.micro_batch_samples
    devices = [times.device for times in problem.profile.times if times.device in _names(problem)]
    both = np.array([clock.table_s(device, samples) for device in devices])
    per_sample = np.min(both / np.arange(1, samples + 1)[None, :, None], axis=1)
    total = problem.micro_batches * samples
    rounding_s = 1e-9 * max(problem.micro_batches, len(problem.profile.units))
    bounds = [float(np.sum(np.min(both, axis=(0, 1))))]
    speeds = _inverse(per_sample.sum(axis=1))
    if np.isfinite(speeds).all():
        weights = speeds / speeds.sum()
        bounds.append(total * priced_work_s(weights, per_sample))
    bounds.append(total * float(np.max(1.0 / np.sum(_inverse(per_sample), axis=0))))
    return max(0.0, max(bounds) - rounding_s)


def _inverse(values: np.ndarray) -> np.ndarray:
    """1/x, infinite at 0."""
    with np.errstate(divide="ignore"):
        return np.asarray(1.0 / values)


def _names(problem: Problem) -> set[str]:
    return {device.name for device in problem.fleet.devices}
