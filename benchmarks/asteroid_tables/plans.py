"""Plans by method and their costs, cached per problem."""

from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

from fleetune.errors import Infeasible
from fleetune.solving.hpp.draft import Draft, DraftStage, all_reduce_s, evaluate, hetpipe_bytes, synchronous_bytes
from fleetune.solving.hpp.instance import Instance
from fleetune.solving.hpp.problem import Problem, Solution, Stage
from fleetune.solving.hpp.solve import solve

SEARCH_ALL_DEVICES = "search!"
"""Label of `search` that must use every device."""


class PlanCosts(NamedTuple):
    """A plan with its costs in the exact simulation."""

    round_s: float
    fits: bool
    """True if the plan exceeds no device's memory."""
    peak_bytes: int
    """Largest peak memory of any device."""
    volume_bytes: int
    """Bytes sent between devices per round: Asteroid eq. (1) for hetpipe, eq. (2) for all others."""
    reduce_s: float
    """Duration of the longest all-reduce."""
    solve_s: float
    draft: Draft
    """The plan; for hetpipe that of its first virtual worker."""
    description: str
    """Devices and samples by stage: `nano-0 64 + nano-1 64 | nano-2 128`."""


def plan_costs(problem: Problem, method: str) -> PlanCosts | None:
    """Costs of the plan that `method` finds; None if it finds none."""
    return _cached_costs(_ByIdentity(problem), method)


def require_plan(problem: Problem, method: str) -> PlanCosts:
    """Costs of the plan that `method` finds; it must find one."""
    found = plan_costs(problem, method)
    assert found is not None, f"{method} finds no plan"
    return found


class _ByIdentity:
    """Cache key of a problem by identity: hashing its tables would take longer than some plans."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem

    def __hash__(self) -> int:
        return id(self.problem)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _ByIdentity) and other.problem is self.problem


@cache
def _cached_costs(key: _ByIdentity, method: str) -> PlanCosts | None:
    problem = key.problem
    name, every_device = ("search", True) if method == SEARCH_ALL_DEVICES else (method, False)
    try:
        found = solve(problem, method=name, every_device=every_device)
    except Infeasible:
        return None
    instance = Instance(problem)
    if found.virtual_workers is not None:
        return _of_hetpipe(instance, found)
    return costs_of(instance, _draft_of(instance, found.stages), found.solve_s)


def costs_of(instance: Instance, draft: Draft, solve_s: float = 0.0) -> PlanCosts:
    """Costs of a draft in the exact simulation."""
    cost = evaluate(instance, draft)
    return PlanCosts(
        round_s=cost.round_s,
        fits=cost.shortfall is None,
        peak_bytes=max(max(of_stage) for of_stage in cost.memory_bytes),
        volume_bytes=synchronous_bytes(instance, draft),
        reduce_s=max(all_reduce_s(instance, stage.devices, stage.first, stage.end) for stage in draft.stages),
        solve_s=solve_s,
        draft=draft,
        description=_description(instance, draft),
    )


def _of_hetpipe(instance: Instance, found: Solution) -> PlanCosts:
    assert found.virtual_workers is not None
    workers = [(_draft_of(instance, worker.stages), worker.micro_batches) for worker in found.virtual_workers]
    return PlanCosts(
        round_s=found.objective,
        fits=found.feasible,
        peak_bytes=max(found.memory_bytes.values()),
        volume_bytes=hetpipe_bytes(instance, workers),
        reduce_s=0.0,
        solve_s=found.solve_s,
        draft=workers[0][0],
        description=" and ".join(f"[{_description(instance, draft)}]" for draft, _ in workers),
    )


def _draft_of(instance: Instance, stages: Sequence[Stage]) -> Draft:
    number = {device.name: place for place, device in enumerate(instance.problem.devices)}
    drafted = tuple(
        DraftStage(
            *stage.layers,
            tuple(number[share.name] for share in stage.devices),
            tuple(share.samples for share in stage.devices),
        )
        for stage in stages
    )
    return Draft(drafted, tuple(stage.warmup for stage in stages))


def _description(instance: Instance, draft: Draft) -> str:
    names = [device.name for device in instance.problem.devices]
    return " | ".join(
        " + ".join(f"{names[device]} {samples}" for device, samples in zip(stage.devices, stage.samples, strict=True))
        for stage in draft.stages
    )
