"""From cuts and shares to a plan, and from a plan to an answer."""

from collections.abc import Sequence

from fleetune.clock import Clock
from fleetune.contracts.plan import Lane, Plan, PlanResult, Segment, Share
from fleetune.contracts.profile import Unit
from fleetune.planning.parts.bound import lower_bound_s
from fleetune.planning.problem import Problem

LANE = "main"


def segment(units: Sequence[Unit], shares: Sequence[tuple[str, int]], warmup: int) -> Segment:
    """A segment from (device, samples) pairs."""
    return Segment(
        units=tuple(unit.name for unit in units),
        shares=tuple(Share(device=device, samples=samples) for device, samples in shares),
        warmup=warmup,
    )


def plan_of(strategy: str, problem: Problem, segments: Sequence[Segment]) -> Plan:
    """A plan of one lane."""
    return Plan(
        strategy=strategy,
        micro_batch_samples=problem.micro_batch_samples,
        micro_batches=problem.micro_batches,
        lanes=(Lane(name=LANE, segments=tuple(segments)),),
    )


def plan_result(
    plan: Plan, problem: Problem, clock: Clock, citation: str, *, bound_s: float | None = None
) -> PlanResult:
    """The plan with its round by the clock and a bound, that of the problem or a better one; `optimal` where they
    meet."""
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
